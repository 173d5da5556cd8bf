/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry run`: the problem in the input file, one rank's work on it, and the report. */
#ifndef FERRY_CLI_RUN_H
#define FERRY_CLI_RUN_H

#include "cli/knobs.h"
#include "cli/safetensors.h"

typedef struct run_options {
    const char *in, *out;
    int64_t ranks; /* 0: not given */
    int64_t processes;
    layer_knobs knobs;
    int64_t isa;
    int64_t grad_bf16;
    double swiglu_limit;
    int64_t backend;
    double timeout_s;
    int64_t json;
} run_options;

/* The input file, checked. Pointers lead into it. */
typedef struct run_problem {
    safetensors_file *file;
    int64_t tokens, slots, hidden, intermediate, experts, shared;
    int has_shared; /* the file has the shared expert's tensors, be they empty */
    ferry_dtype ids_dtype;
    const void *x, *ids, *weights, *gate, *up, *down;
    const void *shared_gate, *shared_up, *shared_down;
    const void *dout; /* NULL: forward only */
    int nranks;
    int64_t *first_token; /* [nranks + 1] where each rank's tokens begin */
    int64_t max_tokens;   /* of one rank */
} run_problem;

/* 0, or the exit code after a message. Free it in both cases. */
int run_problem_open(run_problem *problem, const run_options *options);
/* The layer that the problem is for, with rows by rule. */
ferry_layer_config run_problem_config(const run_problem *problem);
void run_problem_close(run_problem *problem);

/* What every rank computes, in memory that processes share. Gradients are in expert order. */
typedef struct run_outputs {
    void *out, *dx, *dweights;
    void *dgate, *dup, *ddown;                       /* F32, or BF16 with grad_bf16 */
    float *dshared_gate, *dshared_up, *dshared_down; /* [nranks][...]: rank-local sums */
} run_outputs;

/* What a rank says about its work, likewise shared. */
typedef struct run_result {
    ferry_plan plan;
    ferry_report report; /* status FERRY_OK: no bad ids */
    ferry_stats forward, backward;
    double forward_s, backward_s;
} run_result;

typedef struct run_job {
    const run_options *options;
    const run_problem *problem;
    ferry_layer_config config;
    int comm_workers, compute_workers;
    run_outputs outputs;
    run_result *results; /* [nranks] */
} run_job;

/* A cli_rank_main; `user` is the run_job. */
int run_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* Prints the summary, or the object of --json. 0, or the exit code after a message. */
int run_report(const run_job *job);

#endif
