/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `ferry bench` on its GPU. A repetition, on all GPUs at once: the plain products, the forward without a
 * context, the plain products, a forward that keeps a context and its backward, the plain products.
 */
#include "cli/bench_rank.h"

#include "cli/message.h"

#ifdef FERRY_HAVE_CUDA
#include "cli/bench_lane.h"
#include "cli/bench_library.h"
#include "cli/bench_plain.h"
#include "cuda/maps.h"
#include "rules/bf16.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

/* The yardsticks' extents. B and C are as large as the larger of the two products wants them. */
enum { ROWS = 16384, COLUMNS = 4096, DEPTH = 7168, LIBRARY = 8192 };
static const int64_t b_elements = (int64_t)LIBRARY * LIBRARY, c_elements = (int64_t)ROWS * COLUMNS;

typedef struct yardstick {
    bench_library *library; /* NULL: not there */
    bench_plain own;
    uint16_t *a, *b, *c;
    int blocks;
} yardstick;

typedef struct gpu_rank {
    bench_rank_state *s;
    bench_lane lane;
    yardstick yard;
    char why[300]; /* the first failure */
} gpu_rank;

/* Keeps the first failure. 1 when there is none. */
static int good(gpu_rank *g, const char *doing, const char *why) {
    if (why && !g->why[0]) snprintf(g->why, sizeof g->why, "%s: %s", doing, why);
    return !g->why[0];
}

static int good_status(gpu_rank *g, const char *doing, ferry_status status) {
    return good(g, doing, status ? ferry_last_error() : NULL);
}

static const char *say(cudaError_t error) { return error == cudaSuccess ? NULL : cudaGetErrorString(error); }

/* ---- The plain products ---- */

static ferry_status map(CUtensorMap *to, const uint16_t *data, int rows, int columns, int box_rows, const char *name) {
    return fy_gpu_map(to, (fy_gpu_array){data, 0, rows, columns, 0, columns, name, FERRY_BF16}, box_rows);
}

static int make_yardstick(gpu_rank *g) {
    yardstick *y = &g->yard;
    y->a = bench_random(g->s, (int64_t)ROWS * DEPTH, 1);
    y->b = bench_random(g->s, b_elements, 1 / sqrt(DEPTH));
    y->c = cli_device_alloc(&g->s->device, (size_t)c_elements * sizeof *y->c);
    if (!good(g, "the plain products", g->s->device.why[0] ? g->s->device.why : NULL)) return 0;
    y->library = bench_library_open(g->s->device.stream);
    y->blocks = g->s->job->devices.processors;
    y->own.row_tiles = ROWS / PLAIN_TILE_ROWS;
    y->own.column_tiles = COLUMNS / PLAIN_TILE_COLUMNS;
    y->own.steps = DEPTH / PLAIN_STEP;
    return good_status(g, "mapping A", map(&y->own.a, y->a, ROWS, DEPTH, PLAIN_TILE_ROWS, "A")) &&
           good_status(g, "mapping B", map(&y->own.b, y->b, COLUMNS, DEPTH, PLAIN_TILE_COLUMNS, "B")) &&
           good_status(g, "mapping C", map(&y->own.c, y->c, ROWS, COLUMNS, PLAIN_STORE_ROWS, "C")) &&
           good(g, "the plain product", say(bench_plain_load()));
}

/* A yardstick that is wrong measures nothing: some elements against sums in double. */
static int check_yardstick(gpu_rank *g) {
    enum { SAMPLES = 64 };
    yardstick *y = &g->yard;
    static _Thread_local uint16_t row[DEPTH], column[DEPTH];
    double error = 0, size = 0;
    cli_device *device = &g->s->device;
    int done = cli_device_fill(device, y->c, 0xff, (size_t)c_elements * sizeof *y->c) &&
               good(g, "the plain product", say(bench_plain_launch(&y->own, y->blocks, device->stream))) &&
               cli_device_wait(device);
    for (int i = 0; i < SAMPLES && done; i++) {
        int64_t r = (int64_t)i * 7919 % ROWS, c = (int64_t)i * 6007 % COLUMNS;
        uint16_t got;
        double want = 0;
        done = cli_device_copy(device, row, y->a + r * DEPTH, sizeof row) &&
               cli_device_copy(device, column, y->b + c * DEPTH, sizeof column) &&
               cli_device_copy(device, &got, y->c + r * COLUMNS + c, sizeof got);
        for (int k = 0; k < DEPTH; k++) want += (double)fy_bf16_to_f32(row[k]) * (double)fy_bf16_to_f32(column[k]);
        error += ((double)fy_bf16_to_f32(got) - want) * ((double)fy_bf16_to_f32(got) - want);
        size += want * want;
    }
    if (done && y->library)
        done = good(g, "cuBLAS", bench_library_product(y->library, LIBRARY, y->a, y->b, y->c) ? NULL : "failed") &&
               cli_device_wait(device);
    if (!done) return good(g, "the plain product", device->why[0] ? device->why : "failed");
    return good(g, "the plain product", sqrt(error / size) < 4e-3 ? NULL : "its result is wrong");
}

/* Marks: before, between, after. */
static int enqueue_products(gpu_rank *g) {
    yardstick *y = &g->yard;
    int done = good(g, "meeting", bench_lane_meet(&g->lane)) && good(g, "marking", bench_lane_mark(&g->lane));
    if (done && y->library)
        done = good(g, "cuBLAS", bench_library_product(y->library, LIBRARY, y->a, y->b, y->c) ? NULL : "failed");
    return done && good(g, "marking", bench_lane_mark(&g->lane)) &&
           good(g, "the plain product", say(bench_plain_launch(&y->own, y->blocks, g->s->device.stream))) &&
           good(g, "marking", bench_lane_mark(&g->lane));
}

enum { PRODUCT_MARKS = 3 };

static double read_products(const gpu_rank *g, int first, double *library, double *own) {
    const double library_flop = 2.0 * LIBRARY * LIBRARY * LIBRARY, own_flop = 2.0 * ROWS * COLUMNS * DEPTH;
    *library = g->yard.library ? library_flop / bench_lane_between(&g->lane, first, first + 1) : 0;
    *own = own_flop / bench_lane_between(&g->lane, first + 1, first + 2);
    return *library > *own ? *library : *own;
}

/* The fastest of some copies on the device, bytes read plus bytes written. */
static int measure_copy(gpu_rank *g) {
    size_t bytes = (size_t)1 << 30;
    cudaStream_t stream = g->s->device.stream;
    char *from = cli_device_alloc(&g->s->device, 2 * bytes);
    if (!from) return good(g, "measuring copies", g->s->device.why);
    /* What is behind a gate waits for all ranks, and an allocation may wait for what is on its GPU: all are made. */
    if (!good_status(g, "ferry_barrier", ferry_barrier(g->s->comm))) return 0;
    for (int i = 0; i < 8; i++) {
        int done = good(g, "gate", bench_lane_begin(&g->lane)) && good(g, "meeting", bench_lane_meet(&g->lane)) &&
                   good(g, "marking", bench_lane_mark(&g->lane)) &&
                   good(g, "copying", say(cudaMemcpyAsync(from + bytes, from, bytes, cudaMemcpyDefault, stream))) &&
                   good(g, "marking", bench_lane_mark(&g->lane)) &&
                   good(g, "running", bench_lane_go(&g->lane, g->s->comm));
        if (!done) return 0;
        double rate = 2 * (double)bytes / bench_lane_between(&g->lane, 0, 1);
        if (rate > g->s->result->copy_per_s) g->s->result->copy_per_s = rate;
    }
    return 1;
}

/* ---- Repetitions ---- */

static int enqueue_forward(gpu_rank *g, ferry_context *context) {
    g->s->forward.context = context;
    return good_status(g, "ferry_forward", ferry_forward(g->s->layer, &g->s->forward));
}

static int enqueue(gpu_rank *g) {
    int done = good(g, "gate", bench_lane_begin(&g->lane)) && enqueue_products(g) &&
               good(g, "meeting", bench_lane_meet(&g->lane)) && good(g, "marking", bench_lane_mark(&g->lane)) &&
               enqueue_forward(g, NULL) && good(g, "marking", bench_lane_mark(&g->lane)) && enqueue_products(g);
    if (!done || !g->s->context) return done;
    return good(g, "meeting", bench_lane_meet(&g->lane)) && good(g, "marking", bench_lane_mark(&g->lane)) &&
           enqueue_forward(g, g->s->context) && good(g, "marking", bench_lane_mark(&g->lane)) &&
           good_status(g, "ferry_backward", ferry_backward(g->s->layer, &g->s->backward)) &&
           good(g, "marking", bench_lane_mark(&g->lane)) && enqueue_products(g);
}

static void read_sample(gpu_rank *g, bench_sample *sample) {
    double library, own;
    int forward = PRODUCT_MARKS, second = forward + 2, both = second + PRODUCT_MARKS;
    *sample = (bench_sample){.forward_s = 0};
    sample->product[0] = read_products(g, 0, &sample->library, &sample->own);
    sample->forward_s = bench_lane_between(&g->lane, forward, forward + 1);
    sample->product[1] = sample->product[2] = read_products(g, second, &library, &own);
    if (!g->s->context) return;
    sample->backward_s = bench_lane_between(&g->lane, both + 1, both + 2);
    sample->both_s = bench_lane_between(&g->lane, both, both + 2);
    sample->product[2] = read_products(g, both + 3, &library, &own);
}

/* Forwards without and with the context, then a backward: counters are of the last call. It is also where everything is
 * loaded that is loaded when it is first used, which may wait for the whole GPU: never behind a gate. */
static int count(gpu_rank *g) {
    bench_result *result = g->s->result;
    result->forward.size = result->backward.size = sizeof(ferry_stats);
    int done = good_status(g, "ferry_barrier", ferry_barrier(g->s->comm)) && enqueue_forward(g, NULL) &&
               enqueue_forward(g, g->s->context) &&
               good(g, "waiting", say(cudaStreamSynchronize(g->s->device.stream))) &&
               good_status(g, "ferry_layer_stats", ferry_layer_stats(g->s->layer, &result->forward));
    if (!done || !g->s->context) return done;
    return good_status(g, "ferry_backward", ferry_backward(g->s->layer, &g->s->backward)) &&
           good(g, "waiting", say(cudaStreamSynchronize(g->s->device.stream))) &&
           good_status(g, "ferry_layer_stats", ferry_layer_stats(g->s->layer, &result->backward));
}

/* Repetitions before the first that counts fill caches and warm the GPU. */
enum { WARM = 3 };

static int repeat(gpu_rank *g) {
    if (!count(g)) return 0;
    for (int64_t i = -WARM; i < g->s->job->options->repeat; i++) {
        bench_sample sample;
        if (!enqueue(g) || !good(g, "running", bench_lane_go(&g->lane, g->s->comm))) return 0;
        ferry_report report = {.size = sizeof report};
        if (!good_status(g, "the layer", ferry_layer_poll(g->s->layer, &report)) ||
            !good_status(g, "the layer", ferry_comm_error(g->s->comm)))
            return 0;
        read_sample(g, &sample);
        if (i >= 0) g->s->result->sample[i] = sample;
    }
    return 1;
}

int bench_cuda_repeat(bench_rank_state *s) {
    gpu_rank g = {.s = s};
    bench_gates *gates = s->job->gates;
    if (make_yardstick(&g) && check_yardstick(&g) &&
        good(&g, "gates", bench_lane_open(&g.lane, &s->device, gates, s->rank, (int)s->job->options->ranks)) &&
        measure_copy(&g))
        repeat(&g);
    if (g.why[0]) bench_lane_give_up(gates, s->rank);
    cli_device_wait(&s->device);
    bench_lane_close(&g.lane);
    bench_library_close(g.yard.library);
    return g.why[0] ? cli_fail("rank %d: %s", s->rank, g.why) : CLI_OK;
}
#else
int bench_cuda_repeat(bench_rank_state *s) { return cli_fail("rank %d: this build has no CUDA backend", s->rank); }
#endif
