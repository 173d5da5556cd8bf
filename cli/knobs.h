/* SPDX-License-Identifier: Apache-2.0 */
/* What people can choose about a layer, whatever the command. */
#ifndef FERRY_CLI_KNOBS_H
#define FERRY_CLI_KNOBS_H

#include "cli/options.h"
#include "ferry/ferry.h"

typedef struct layer_knobs {
    int64_t minibatch, ring;               /* rows; 0: by rule */
    int64_t context;                       /* KNOB_CONTEXT_*, or rows */
    int64_t comm_workers, compute_workers; /* 0: default */
    int64_t pull_warps, fan_out;           /* GPU: 0: by rule */
    int64_t comm_sms, sm_margin;           /* GPU: 0: none */
    const char *tune_file;                 /* NULL: the usual one */
} layer_knobs;

enum { KNOB_CONTEXT_RULE = -1, KNOB_CONTEXT_SAVED = -2, KNOB_MAX_RANKS = 256 };

extern const cli_word knob_contexts[], knob_isas[], knob_grad_dtypes[], knob_backends[], knob_fan_outs[];

#define KNOB_INT(type, member, label, field, least, most, letter, text)                                                \
    {                                                                                                                  \
        .name = label, .kind = CLI_INT, .at = offsetof(type, member.field), .min = least, .max = most,                 \
        .argument = letter, .help = text                                                                               \
    }

/* Rows of an options table, for a `layer_knobs member` of the struct `type`. */
#define LAYER_KNOB_OPTIONS(type, member)                                                                               \
    KNOB_INT(type, member, "minibatch", minibatch, 1, INT32_MAX, "ROWS",                                               \
             "rows handed to the next role at once, rounded up to a multiple of 64, at most the ring (default: "       \
             "by rule)"),                                                                                              \
        KNOB_INT(type, member, "ring", ring, 1, INT32_MAX, "ROWS",                                                     \
                 "rows of the ring buffer, which hold one macrobatch, rounded up to a multiple of 64 (default: by "    \
                 "rule)"),                                                                                             \
        KNOB_INT(type, member, "comm-workers", comm_workers, 1, 64, "N",                                               \
                 "on a CPU: threads per rank that pull, push and sum rows (default 1)"),                               \
        KNOB_INT(type, member, "compute-workers", compute_workers, 1, 1024, "N",                                       \
                 "threads per rank that multiply (default: processors / ranks, at least 1); on a GPU multiprocessors " \
                 "(default: all, shared out among the ranks there)"),                                                  \
        KNOB_INT(type, member, "pull-warps", pull_warps, 1, 3, "N",                                                    \
                 "on a GPU: warps of each multiprocessor that pull rows (default: by rule)"),                          \
        {.name = "fan-out",                                                                                            \
         .kind = CLI_CHOICE,                                                                                           \
         .at = offsetof(type, member.fan_out),                                                                         \
         .words = knob_fan_outs,                                                                                       \
         .help = "on a GPU: a token's row is pulled once for all its rows here, or once for each (default: by rule)"}, \
        KNOB_INT(type, member, "comm-sms", comm_sms, 0, 1024, "N",                                                     \
                 "on a GPU: multiprocessors that pull and sum and do nothing else (default: none)"),                   \
        KNOB_INT(type, member, "sm-margin", sm_margin, 0, 1024, "N",                                                   \
                 "on a GPU: multiprocessors that are left free for other kernels (default: none)"),                    \
        {.name = "tune-file",                                                                                          \
         .kind = CLI_STRING,                                                                                           \
         .at = offsetof(type, member.tune_file),                                                                       \
         .argument = "FILE",                                                                                           \
         .help = "what ferry tune has measured, for what is left to the rules; '' for none (default: "                 \
                 "$FERRY_TUNE_FILE, else ferry/tune in $XDG_CACHE_HOME or ~/.cache)"},                                 \
    {                                                                                                                  \
        .name = "context", .kind = CLI_INT, .at = offsetof(type, member.context), .words = knob_contexts, .min = 1,    \
        .max = INT64_MAX, .argument = "ROWS",                                                                          \
        .help = "what forward leaves for backward: all rows, none (backward computes them again), or the first ROWS "  \
                "(default: twice the balanced share)"                                                                  \
    }

/* Rows that several commands have, for fields of the same names in `type`: int64_t but for `const char *routing` and
 * `double skew`. */
#define RANKS_OPTION(type, text)                                                                                       \
    {                                                                                                                  \
        .name = "ranks", .kind = CLI_INT, .at = offsetof(type, ranks), .min = 1, .max = KNOB_MAX_RANKS,                \
        .argument = "R", .help = text                                                                                  \
    }

#define MODE_OPTIONS(type)                                                                                             \
    {.name = "threads",                                                                                                \
     .kind = CLI_FLAG,                                                                                                 \
     .at = offsetof(type, processes),                                                                                  \
     .clears = 1,                                                                                                      \
     .group = "mode",                                                                                                  \
     .help = "ranks are threads of this process (default)"},                                                           \
    {                                                                                                                  \
        .name = "processes", .kind = CLI_FLAG, .at = offsetof(type, processes), .group = "mode",                       \
        .help = "ranks are processes that share memory in /dev/shm"                                                    \
    }

#define ISA_OPTION(type)                                                                                               \
    {                                                                                                                  \
        .name = "isa", .kind = CLI_CHOICE, .at = offsetof(type, isa), .words = knob_isas,                              \
        .help = "instruction set of the products (default: the widest here); all give the same bits"                   \
    }

#define BACKEND_OPTION(type)                                                                                           \
    {                                                                                                                  \
        .name = "backend", .kind = CLI_CHOICE, .at = offsetof(type, backend), .words = knob_backends,                  \
        .help = "where it runs (default cpu); on GPUs rank r has number r modulo their count"                          \
    }

#define GRAD_DTYPE_OPTION(type, text)                                                                                  \
    {                                                                                                                  \
        .name = "grad-dtype", .kind = CLI_CHOICE, .at = offsetof(type, grad_bf16), .words = knob_grad_dtypes,          \
        .help = text                                                                                                   \
    }

#define ROUTING_OPTIONS(type)                                                                                          \
    {.name = "routing",                                                                                                \
     .kind = CLI_STRING,                                                                                               \
     .at = offsetof(type, routing),                                                                                    \
     .argument = "FILE",                                                                                               \
     .help = "ids and weights of a safetensors file instead of drawn ones; they give the tokens, "                     \
             "and must have the slots of the shape"},                                                                  \
        {.name = "skew",                                                                                               \
         .kind = CLI_DOUBLE,                                                                                           \
         .at = offsetof(type, skew),                                                                                   \
         .min = 0,                                                                                                     \
         .max = 100,                                                                                                   \
         .argument = "S",                                                                                              \
         .help = "unevenness of drawn ids: how far the experts' own logits lie apart (default 0)"},                    \
    {                                                                                                                  \
        .name = "seed", .kind = CLI_INT, .at = offsetof(type, seed), .min = 0, .max = INT64_MAX, .argument = "S",      \
        .help = "decides the drawn ids (default 1)"                                                                    \
    }

/* 0, or the exit code after a message: a knob of GPUs is given on the CPU, or one of CPUs, `isa` among them, on a GPU.
 */
int knobs_check_backend(const layer_knobs *knobs, int64_t isa, int64_t backend);
/* Fills the rows of a configuration whose extents are set, for `tokens` tokens over all ranks. */
void knobs_configure(const layer_knobs *knobs, int64_t tokens, ferry_layer_config *config);
int knobs_comm_workers(const layer_knobs *knobs);
int knobs_compute_workers(const layer_knobs *knobs, int ranks);
/* Both, for either backend; on a GPU 0 stands for the library's own choice. */
void knobs_choose_workers(const layer_knobs *knobs, int64_t backend, int ranks, int *comm_workers,
                          int *compute_workers);

#endif
