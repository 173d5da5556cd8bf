/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry bench`: what was asked for, one rank's repetitions, and the report. */
#ifndef FERRY_CLI_BENCH_H
#define FERRY_CLI_BENCH_H

#include "cli/knobs.h"
#include "cli/routing.h"
#include "cli/shapes.h"

enum { BENCH_MAX_REPEAT = 1000 };

typedef struct bench_options {
    const char *shape, *routing;
    int64_t ranks, processes;
    double skew, scale; /* scale 0: by rule */
    int64_t seed, repeat;
    layer_knobs knobs;
    int64_t grad_bf16, isa, backend, json;
} bench_options;

/* One repetition on one rank. */
typedef struct bench_sample {
    double product[3]; /* operations per second of the plain product kernel: before, between and after the two calls */
    double forward_s, backward_s;
} bench_sample;

/* What a rank says, in memory that processes share. */
typedef struct bench_result {
    ferry_plan plan;
    ferry_stats forward, backward;
    bench_sample sample[BENCH_MAX_REPEAT];
} bench_result;

typedef struct bench_job {
    const bench_options *options;
    double scale;
    layer_shape shape; /* as measured */
    routing routing;
    ferry_layer_config config;
    int comm_workers, compute_workers;
    bench_result *results; /* [ranks] */
} bench_job;

/* A cli_rank_main; `user` is the bench_job. */
int bench_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* Prints the summary, or the object of --json. 0, or the exit code after a message. */
int bench_report(const bench_job *job);

#endif
