/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `ferry tune`: a communicator and a layer for every candidate, over the same tensors, called in turn, so
 * that a machine that gets slower or faster meanwhile does so for all of them.
 */
#include "cli/bench_rank.h"
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/tune.h"
#include "comm/clock.h"
#include "core/layer.h"
#include "rules/place.h"
#ifdef FERRY_HAVE_CUDA
#include "cli/bench_lane.h"
#endif

#include <stdio.h>

typedef struct tune_layer {
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
} tune_layer;

typedef struct tune_state {
    const tune_job *job;
    bench_rank_state bench;
    tune_result *result;
    tune_layer layer[TUNE_CANDIDATES];
#ifdef FERRY_HAVE_CUDA
    bench_lane lane;
#endif
} tune_state;

static ferry_status create(tune_state *s, const ferry_bootstrap *bootstrap, int i) {
    const tune_job *job = s->job;
    tune_layer *l = &s->layer[i];
    ferry_comm_config config;
    ferry_layer_config layer_config = job->bench.config;
    int comm_workers = 0;
    ferry_comm_config_init(&config);
    config.backend = (ferry_backend)job->options->backend;
    config.bootstrap = *bootstrap;
    config.device = s->bench.device.index;
    fy_tune_apply(&job->candidate[i], &layer_config, &comm_workers);
    if (comm_workers > 0) {
        config.comm_workers = comm_workers;
        config.compute_workers = job->workers - comm_workers;
    }
    ferry_status status = ferry_comm_create(&config, &l->comm);
    if (!status) status = ferry_layer_create(l->comm, &layer_config, &l->layer);
    if (!status && job->options->backward) status = ferry_context_create(l->layer, NULL, &l->context);
    return status;
}

/* What the first candidate's layer says of itself. */
static ferry_status describe(tune_state *s) {
    const ferry_comm *comm = s->layer[0].comm;
    tune_result *r = s->result;
    r->plan.size = sizeof r->plan;
    ferry_status status = ferry_layer_get_plan(s->layer[0].layer, &r->plan);
    int gpu = s->job->options->backend == FERRY_CUDA;
    r->workers = gpu ? r->plan.multiprocessors : comm->config.comm_workers + comm->config.compute_workers;
    fy_backend_of(comm->config.backend)->machine(comm, r->machine, sizeof r->machine);
    s->bench.result->plan = r->plan;
    return status;
}

static ferry_status call(tune_state *s, const tune_layer *l) {
    s->bench.forward.context = l->context;
    ferry_status status = ferry_forward(l->layer, &s->bench.forward);
    s->bench.backward.context = l->context;
    return status || !l->context ? status : ferry_backward(l->layer, &s->bench.backward);
}

static int timed_on_host(tune_state *s, const tune_layer *l, double *seconds) {
    ferry_status status = ferry_barrier(l->comm);
    int64_t start = fy_now_ns();
    if (!status) status = call(s, l);
    *seconds = 1e-9 * (double)(fy_now_ns() - start);
    return status ? cli_fail_status(status, "measuring") : CLI_OK;
}

#ifdef FERRY_HAVE_CUDA
/* Enqueued behind a gate, so that no time of the host is between the marks. */
static int timed_on_gpu(tune_state *s, const tune_layer *l, double *seconds) {
    bench_lane *lane = &s->lane;
    ferry_status status = FERRY_OK;
    const char *why = bench_lane_begin(lane);
    if (!why) why = bench_lane_meet(lane);
    if (!why) why = bench_lane_mark(lane);
    if (!why) status = call(s, l);
    if (!why && !status) why = bench_lane_mark(lane);
    if (!why && !status) why = bench_lane_go(lane, l->comm);
    if (!why && !status) status = ferry_comm_error(l->comm);
    if (status) return cli_fail_status(status, "measuring");
    if (why) return cli_fail("rank %d: %s", s->bench.rank, why);
    *seconds = bench_lane_between(lane, 0, 1);
    return CLI_OK;
}

/* Kernels are loaded when they are first used, which may wait for the whole GPU: never behind a gate. */
static int first_calls(tune_state *s) {
    int code = CLI_OK;
    for (int i = 0; i < s->job->candidates && !code; i++) {
        ferry_status status = ferry_barrier(s->layer[i].comm);
        if (!status) status = call(s, &s->layer[i]);
        if (status) code = cli_fail_status(status, "the first call");
        if (!code && !cli_device_wait(&s->bench.device))
            code = cli_fail("rank %d: %s", s->bench.rank, s->bench.device.why);
    }
    return code;
}
#endif

/* Two turns that do not count, then those that do. */
static int repeat(tune_state *s, int (*timed)(tune_state *, const tune_layer *, double *)) {
    enum { WARM = 2 };
    int code = CLI_OK;
    for (int turn = -WARM; turn < s->job->repeat && !code; turn++) {
        for (int i = 0; i < s->job->candidates && !code; i++) {
            double seconds = 0;
            code = timed(s, &s->layer[i], &seconds);
            if (turn >= 0) s->result->seconds[i][turn] = seconds;
        }
    }
    return code;
}

static int measure(tune_state *s) {
    if (s->job->options->backend == FERRY_CPU) return repeat(s, timed_on_host);
#ifdef FERRY_HAVE_CUDA
    bench_gates *gates = s->job->bench.gates;
    int code = first_calls(s);
    const char *why = bench_lane_open(&s->lane, &s->bench.device, gates, s->bench.rank, (int)s->job->options->ranks);
    if (!code && why) code = cli_fail("rank %d: %s", s->bench.rank, why);
    /* What is behind a gate waits for all ranks: none is still on its way here, where it may wait for its GPU. */
    ferry_status met = code ? FERRY_OK : ferry_barrier(s->bench.comm);
    if (!code && met) code = cli_fail_status(met, "meeting before the first turn");
    if (!code) code = repeat(s, timed_on_gpu);
    if (code) bench_lane_give_up(gates, s->bench.rank);
    cli_device_wait(&s->bench.device);
    bench_lane_close(&s->lane);
    return code;
#else
    return cli_fail("this build has no CUDA backend");
#endif
}

static int work(tune_state *s, const ferry_bootstrap *bootstrap) {
    ferry_status status = FERRY_OK;
    if (!cli_device_open(&s->bench.device, (ferry_backend)s->job->options->backend, s->bench.rank))
        return cli_fail("rank %d: %s", s->bench.rank, s->bench.device.why);
    for (int i = 0; i < s->job->candidates && !status; i++) status = create(s, bootstrap, i);
    if (!status) status = describe(s);
    if (status) return cli_fail_status(status, "creating the layers");
    bench_fill_forward(&s->bench);
    if (s->job->options->backward) bench_fill_backward(&s->bench);
    if (s->bench.device.why[0]) return cli_fail("rank %d: %s", s->bench.rank, s->bench.device.why);
    return measure(s);
}

int tune_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const tune_job *job = user;
    int64_t tokens = job->bench.routing.tokens, ranks = job->options->ranks;
    bench_result filled = {.plan.size = sizeof filled.plan};
    tune_state s = {.job = job,
                    .result = &job->results[rank],
                    .bench = {.job = &job->bench,
                              .result = &filled,
                              .rank = rank,
                              .tokens = (int32_t)fy_split_size(tokens, ranks, rank),
                              .first = fy_split_first(tokens, ranks, rank)}};
    int code = work(&s, bootstrap);
    for (int i = 0; i < job->candidates; i++) {
        ferry_context_destroy(s.layer[i].context);
        ferry_layer_destroy(s.layer[i].layer);
        ferry_comm_destroy(s.layer[i].comm);
    }
    cli_device_close(&s.bench.device);
    return code;
}
