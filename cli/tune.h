/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry tune`: what was asked for, the search, one rank's measurements, and the file. */
#ifndef FERRY_CLI_TUNE_H
#define FERRY_CLI_TUNE_H

#include "cli/bench.h"
#include "core/tune.h"

enum { TUNE_CANDIDATES = 8, TUNE_REPEAT = 15 };

typedef struct tune_options {
    const char *shape, *tune_file;
    int64_t ranks, processes;
    double skew;
    int64_t seed, sm_margin;
    int64_t backend, backward, quick, list, json;
} tune_options;

/* What a rank says, in memory that processes share. */
typedef struct tune_result {
    ferry_plan plan; /* of the first candidate */
    int workers;     /* as of fy_tune_entry */
    char machine[256];
    double seconds[TUNE_CANDIDATES][TUNE_REPEAT];
} tune_result;

/* A batch of candidates, measured in turn; the values of an entry say what to use. */
typedef struct tune_job {
    const tune_options *options;
    bench_job bench; /* shape, routing and configuration */
    bench_options bench_options;
    fy_tune_entry candidate[TUNE_CANDIDATES];
    int candidates, repeat;
    int workers;          /* CPU: threads of a rank; 0: not known yet */
    tune_result *results; /* [ranks] */
} tune_job;

/* A cli_rank_main; `user` is the tune_job. */
int tune_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* ---- The search (tune_search.c) ---- */
/* What is varied, one after the other. */
enum { TUNE_MINIBATCH, TUNE_FAN_OUT, TUNE_PULL_WARPS, TUNE_COMM_SMS, TUNE_COMM_WORKERS, TUNE_AXES };
extern const char *const tune_axis_name[TUNE_AXES];
/* Of a candidate on CPUs, along one axis, at most. */
int tune_neighbours(int quick);
/* `base`, then its neighbours along the axis; returns their number, 1 where there is nothing to choose. `plan` is the
 * rule's. */
int tune_candidates(const fy_tune_entry *base, const ferry_plan *plan, int axis, int quick, fy_tune_entry *candidates);
/* Whether the second of two series that were measured in turn is faster by more than they scatter. */
int tune_beats(const double *base, const double *candidate, int count);
double tune_median(const double *values, int count);

/* ---- The file (tune_file.c) ---- */
/* Puts the entry in the place of one with its key, or at the end; other lines stay. 0, or the exit code after a
 * message. Readers see the old file or the new one. */
int tune_file_put(const char *path, const fy_tune_entry *entry);
/* Whether that could be done: to be known before the work. `named`: somebody chose the path, so that a folder that is
 * missing is a mistake; otherwise it is made. */
int tune_file_check(const char *path, int named);
/* Prints all entries, and which lines are none. A named file has to be there. */
int tune_file_list(const char *path, int named, int json);
/* Remarks that layers will find nothing in a file that was given to them; NULL and "": nothing was given. */
void tune_file_remark(const char *path);
/* "minibatch_rows 512, fan_out each"; "by rule" */
void tune_values(const fy_tune_entry *entry, char *to, size_t room);

#endif
