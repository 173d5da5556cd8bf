/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tune files: what `ferry tune` has measured on this kind of machine, a line each, and what a layer takes from them. A
 * line that is no entry is somebody else's: readers pass it over and writers keep it.
 */
#ifndef FERRY_CORE_TUNE_H
#define FERRY_CORE_TUNE_H

#include "comm/comm.h"

#include <stdio.h>

enum {
    FY_TUNE_NAME = 96,       /* of a machine, its end included */
    FY_TUNE_LINE = 640,      /* no entry is longer, its newline and end included */
    FY_TUNE_BYTES = 4 << 20, /* a larger file is none: making a layer must not take long */
};

/* For what it was measured (the key) and what is best there. Values of 0 leave the choice to the rule. */
typedef struct fy_tune_entry {
    char machine[FY_TUNE_NAME]; /* fy_tune_machine */
    int64_t backend;            /* ferry_backend */
    int64_t workers;            /* of a rank: all threads; on CUDA the multiprocessors that its calls use */
    int64_t ranks, hidden, intermediate, shared, experts, slots, max_tokens;
    int64_t backward; /* 1: of a forward that keeps a context and its backward, 0: of a forward alone */
    int64_t minibatch_rows, pull_warps, fan_out, comm_sms, comm_workers;
    int64_t rule_us, tuned_us; /* what was measured, for people */
} fy_tune_entry;

/* ---- Lines (tune_line.c) ---- */
/* A name of a machine as a line has it: one word. */
void fy_tune_machine(const char *name, char to[FY_TUNE_NAME]);
/* 1 and *entry when the line, with or without its newline, is an entry. */
int fy_tune_parse(const char *line, fy_tune_entry *entry);
/* Whether the line begins as entries of any version do. */
int fy_tune_form(const char *line);
/* The line with its newline. */
void fy_tune_print(const fy_tune_entry *entry, char line[FY_TUNE_LINE]);
int fy_tune_same_key(const fy_tune_entry *a, const fy_tune_entry *b);

/* ---- Files (tune.c) ---- */
/* The file that `given`, as of ferry_layer_config.tune_file, stands for. 0: none. */
int fy_tune_path(const char *given, char *path, size_t room);
/* Opens the file for reading. NULL with errno: ENOENT, EINVAL for what is no plain file, EFBIG for more than
 * FY_TUNE_BYTES, or what the system says. */
FILE *fy_tune_open(const char *path);
/* The last entry of the file with the key of *entry: 1, and its values are in *entry. 0 also where there is no file. */
int fy_tune_find(const char *path, fy_tune_entry *entry);
/* The entry that a layer takes: of forward and backward, else of a forward alone. `entry` has the rest of the key. */
int fy_tune_find_for_layer(const char *path, fy_tune_entry *entry);
/* Fills what is left to the rules; returns FERRY_TUNED_*. comm_workers NULL: not left to the rule. */
int fy_tune_apply(const fy_tune_entry *entry, ferry_layer_config *config, int *comm_workers);
/* The key of a layer of that configuration. */
fy_tune_entry fy_tune_key(const ferry_layer_config *config, ferry_backend backend, const char *machine, int workers,
                          int ranks);
/* The processor's name, as the system says it. */
void fy_processor_name(char *to, size_t room);
/* Collective: rank 0's entry, if its file has one, applied on every rank. */
ferry_status fy_tune_layer(ferry_comm *comm, ferry_layer_config *config, int *comm_workers, int *tuned);

#endif
