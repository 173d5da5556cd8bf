/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry bench`: what was asked for, one rank's repetitions, and the report. */
#ifndef FERRY_CLI_BENCH_H
#define FERRY_CLI_BENCH_H

#include "cli/device.h"
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
    int64_t grad_bf16, isa, backend, micro, json;
} bench_options;

/* One repetition on one rank. */
typedef struct bench_sample {
    /* Operations per second of the plain product (on a GPU: the better of the two below): before, between and after
     * the calls. */
    double product[3];
    double library, own; /* GPU: in the first turn, the vendor's library (0: not there) and bench_plain */
    double forward_s, backward_s;
    double both_s; /* of a forward that keeps a context, and its backward */
} bench_sample;

/* What a rank says, in memory that processes share. */
typedef struct bench_result {
    ferry_plan plan;
    ferry_stats forward, backward;
    char no_backward[200]; /* why the backend has none, or "" */
    double copy_per_s;     /* GPU: bytes read plus bytes written */
    bench_sample sample[BENCH_MAX_REPEAT];
} bench_result;

/* Counters with which GPUs begin together, one a cache line. GPUs map them, so they live as long as the command. */
typedef struct bench_gates {
    struct {
        _Alignas(64) _Atomic uint32_t value;
    } open, arrived[KNOB_MAX_RANKS];
} bench_gates;

typedef struct bench_job {
    const bench_options *options;
    double scale;
    layer_shape shape; /* as measured */
    routing routing;
    ferry_layer_config config;
    int comm_workers, compute_workers;
    cli_devices devices;
    bench_result *results; /* [ranks] */
    bench_gates *gates;    /* GPU: in memory that processes share, as results are */
} bench_job;

/* A cli_rank_main; `user` is the bench_job. */
int bench_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* Bytes of the tensors that a rank of the bench or of the search makes for its calls, over all ranks; and those of the
 * products beside them, on CPUs. */
double bench_tensor_bytes(const bench_job *job, int backward);
double bench_product_bytes(const bench_job *job);

/* The same for GPUs: with the floor that the same run's yardsticks give, and the score. */
int bench_cuda_report(const bench_job *job);

/* Prints the summary, or the object of --json. 0, or the exit code after a message. */
int bench_report(const bench_job *job);

#endif
