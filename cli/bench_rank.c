/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry bench`: random inputs, then product kernel, forward and backward in turn. */
#include "cli/bench_rank.h"

#include "cli/memory.h"
#include "cli/message.h"
#include "comm/clock.h"
#include "rules/bf16.h"
#include "rules/place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

/* Values that are drawn; no multiple of the rows of any usual matrix, so that repeats do not line up. */
enum { UNIQUE = (1 << 24) + 1032 };

static void *take(bench_rank_state *s, int64_t count, size_t size) {
    return cli_device_alloc(&s->device, (size_t)count * size);
}

static void draw(uint16_t *values, int64_t count, uint32_t seed, double scale) {
    uint32_t state = seed * 2654435761u;
    float width = (float)(scale * sqrt(12));
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = fy_bf16_from_f32(((float)(state >> 8) * 0x1p-24f - 0.5f) * width);
    }
}

void *bench_random(bench_rank_state *s, int64_t count, double scale) {
    const size_t size = sizeof(uint16_t);
    int64_t done = count < UNIQUE ? count : UNIQUE;
    uint16_t *memory = take(s, count, size), *drawn = malloc((size_t)done * size + 1);
    s->seeds++;
    if (drawn) draw(drawn, done, (uint32_t)(s->rank * CLI_DEVICE_BLOCKS + s->seeds), scale);
    int good = memory && drawn && cli_device_copy(&s->device, memory, drawn, (size_t)done * size);
    for (int64_t more; good && done < count; done += more) {
        more = count - done < done ? count - done : done;
        good = cli_device_copy(&s->device, memory + done, memory, (size_t)more * size);
    }
    if (!drawn && !s->device.why[0]) snprintf(s->device.why, sizeof s->device.why, "no memory for random numbers");
    free(drawn);
    return good ? memory : NULL;
}

static ferry_matrices matrices(void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

void bench_fill_forward(bench_rank_state *s) {
    const ferry_layer_config *c = &s->job->config;
    int64_t h = c->hidden, i = c->intermediate, size = s->result->plan.local_experts * h * i;
    size_t slots = (size_t)(s->tokens * c->slots);
    ferry_forward_args *f = &s->forward;
    ferry_forward_args_init(f);
    f->stream = s->device.stream;
    f->num_tokens = cli_device_in(&s->device, &s->tokens, sizeof s->tokens);
    f->x = bench_random(s, s->tokens * h, 1);
    f->ids = cli_device_in(&s->device, s->job->routing.ids + s->first * c->slots, slots * sizeof(int32_t));
    f->ids_dtype = FERRY_I32;
    f->weights = cli_device_in(&s->device, s->job->routing.weights + s->first * c->slots, slots * sizeof(float));
    f->params.gate = matrices(bench_random(s, size, 1 / sqrt((double)h)), i, h, FERRY_BF16);
    f->params.up = matrices(bench_random(s, size, 1 / sqrt((double)h)), i, h, FERRY_BF16);
    f->params.down = matrices(bench_random(s, size, 1 / sqrt((double)i)), h, i, FERRY_BF16);
    f->out = take(s, s->tokens * h, sizeof(uint16_t));
    f->context = s->context;
}

void bench_fill_backward(bench_rank_state *s) {
    const ferry_layer_config *c = &s->job->config;
    int64_t h = c->hidden, i = c->intermediate, size = s->result->plan.local_experts * h * i;
    ferry_dtype dtype = s->job->options->grad_bf16 ? FERRY_BF16 : FERRY_F32;
    size_t element = dtype == FERRY_BF16 ? sizeof(uint16_t) : sizeof(float);
    ferry_backward_args *b = &s->backward;
    ferry_backward_args_init(b);
    b->stream = s->device.stream;
    b->context = s->context;
    b->parts = FERRY_BACKWARD_ALL;
    b->dout = bench_random(s, s->tokens * h, 1);
    b->params = s->forward.params;
    b->dx = take(s, s->tokens * h, sizeof(uint16_t));
    b->dweights = take(s, s->tokens * c->slots, sizeof(float));
    b->grads.gate.to = matrices(take(s, size, element), i, h, dtype);
    b->grads.up.to = matrices(take(s, size, element), i, h, dtype);
    b->grads.down.to = matrices(take(s, size, element), h, i, dtype);
}

double bench_tensor_bytes(const bench_job *job, int backward) {
    return memory_of_inputs(&job->config, job->routing.tokens, backward) +
           memory_of_results(&job->config, job->routing.tokens, backward, job->options->grad_bf16 ? 2 : 4);
}

/* ---- Setting up ---- */

static ferry_status create(bench_rank_state *s, const ferry_bootstrap *bootstrap) {
    const bench_job *job = s->job;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.backend = (ferry_backend)job->options->backend;
    config.bootstrap = *bootstrap;
    config.device = s->device.index;
    config.comm_workers = job->comm_workers;
    config.compute_workers = job->compute_workers;
    config.isa = (ferry_isa)job->options->isa;
    s->result->plan.size = sizeof s->result->plan;
    ferry_status status = ferry_comm_create(&config, &s->comm);
    if (!status) status = ferry_layer_create(s->comm, &job->config, &s->layer);
    if (!status) status = ferry_layer_get_plan(s->layer, &s->result->plan);
    if (!status) status = ferry_context_create(s->layer, NULL, &s->context);
    if (status != FERRY_E_UNSUPPORTED || !s->layer) return status;
    snprintf(s->result->no_backward, sizeof s->result->no_backward, "%s", ferry_last_error());
    return FERRY_OK;
}

/* Of one expert, were they all equally busy. */
static int64_t product_rows(const bench_job *job) {
    int64_t rows = job->routing.tokens * job->config.slots / job->config.experts, most = 4096;
    return rows < 1 ? 1 : rows > most ? most : rows;
}

/* The product of gate and up over the rows of one expert. */
static bench_product *product_like_layer(const bench_job *job) {
    const ferry_layer_config *c = &job->config;
    return bench_product_create((ferry_isa)job->options->isa, job->compute_workers, product_rows(job),
                                2 * c->intermediate, c->hidden);
}

double bench_product_bytes(const bench_job *job) {
    const ferry_layer_config *c = &job->config;
    double rows = (double)product_rows(job), columns = 2.0 * (double)c->intermediate;
    return 2 * (rows + columns) * (double)c->hidden * (double)job->options->ranks;
}

/* ---- Repetitions ---- */

static ferry_status timed_forward(bench_rank_state *s, double *seconds) {
    ferry_status status = ferry_barrier(s->comm);
    int64_t start = fy_now_ns();
    if (!status) status = ferry_forward(s->layer, &s->forward);
    *seconds = 1e-9 * (double)(fy_now_ns() - start);
    s->result->forward.size = sizeof s->result->forward;
    return status ? status : ferry_layer_stats(s->layer, &s->result->forward);
}

static ferry_status timed_backward(bench_rank_state *s, double *seconds) {
    ferry_status status = ferry_barrier(s->comm);
    int64_t start = fy_now_ns();
    if (!status) status = ferry_backward(s->layer, &s->backward);
    *seconds = 1e-9 * (double)(fy_now_ns() - start);
    s->result->backward.size = sizeof s->result->backward;
    return status ? status : ferry_layer_stats(s->layer, &s->result->backward);
}

/* The plain product kernel on all ranks at once. */
static ferry_status timed_product(bench_rank_state *s, double *rate) {
    const double seconds = 0.2;
    ferry_status status = ferry_barrier(s->comm);
    *rate = bench_product_run(s->product, seconds);
    return status;
}

/* Machines are not equally fast for long, so the kernel has a turn before and after every call. Repetition -1 touches
 * all memory and does not count. */
static ferry_status repeat(bench_rank_state *s) {
    bench_sample sample;
    ferry_status status = timed_product(s, &sample.product[2]);
    for (int64_t i = -1; i < s->job->options->repeat; i++) {
        sample.product[0] = sample.product[2];
        if (!status) status = timed_forward(s, &sample.forward_s);
        if (!status) status = timed_product(s, &sample.product[1]);
        if (!status) status = timed_backward(s, &sample.backward_s);
        if (!status) status = timed_product(s, &sample.product[2]);
        if (status) return status;
        sample.both_s = sample.forward_s + sample.backward_s;
        if (i >= 0) s->result->sample[i] = sample;
    }
    return FERRY_OK;
}

static int repeat_cpu(bench_rank_state *s) {
    s->product = product_like_layer(s->job);
    if (!s->product) return cli_fail("rank %d: no memory for the product kernel", s->rank);
    ferry_status status = repeat(s);
    return status ? cli_fail_status(status, "measuring") : CLI_OK;
}

/* A rank without memory says so; the others learn it from the communicator's end. */
static int measure(bench_rank_state *s, const ferry_bootstrap *bootstrap) {
    int gpu = s->job->options->backend == FERRY_CUDA;
    if (!cli_device_open(&s->device, (ferry_backend)s->job->options->backend, s->rank))
        return cli_fail("rank %d: %s", s->rank, s->device.why);
    ferry_status status = create(s, bootstrap);
    if (status) return cli_fail_status(status, "creating the layer");
    bench_fill_forward(s);
    if (s->context) bench_fill_backward(s);
    if (s->device.why[0]) return cli_fail("rank %d: %s", s->rank, s->device.why);
    return gpu ? bench_cuda_repeat(s) : repeat_cpu(s);
}

int bench_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const bench_job *job = user;
    int64_t tokens = job->routing.tokens, ranks = job->options->ranks;
    bench_rank_state s = {.job = job,
                          .result = &job->results[rank],
                          .rank = rank,
                          .tokens = (int32_t)fy_split_size(tokens, ranks, rank),
                          .first = fy_split_first(tokens, ranks, rank)};
    int code = measure(&s, bootstrap);
    ferry_context_destroy(s.context);
    ferry_layer_destroy(s.layer);
    ferry_comm_destroy(s.comm);
    bench_product_destroy(s.product);
    cli_device_close(&s.device);
    return code;
}
