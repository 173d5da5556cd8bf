/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A team of threads starts together and repeats a unit of work until its time is over; the rate is the sum of theirs.
 * Units are tiles of the product kernel (`ferry bench`; plan_machine.c) and copies (plan_machine.c).
 */
#include "cli/bench_product.h"

#include "comm/clock.h"
#include "cpu/product.h"
#include "rules/ring.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- Threads that work until a time is over ---- */

typedef struct team team;

/* One unit of work of one thread: what it achieved, in operations or bytes. */
typedef double team_unit(void *user, int thread);

typedef struct team_thread {
    pthread_t handle;
    team *team;
    int index;
    double rate;
} team_thread;

struct team {
    team_unit *unit;
    void *user;
    double seconds;
    int threads;
    _Atomic int present; /* threads that are ready: they start together */
    team_thread *thread;
};

static void *team_main(void *argument) {
    team_thread *self = argument;
    team *t = self->team;
    atomic_fetch_add(&t->present, 1);
    while (atomic_load(&t->present) < t->threads) fy_sleep_ns(1000);
    int64_t start = fy_now_ns(), end = start + (int64_t)(t->seconds * 1e9), now;
    double done = 0;
    do {
        done += t->unit(t->user, self->index);
        now = fy_now_ns();
    } while (now < end);
    self->rate = done / (1e-9 * (double)(now - start));
    return NULL;
}

/* The sum of the threads' rates; 0 when one could not be started. */
static double team_run(team_unit *unit, void *user, int threads, double seconds) {
    team t = {.unit = unit, .user = user, .seconds = seconds, .threads = threads};
    t.thread = calloc((size_t)threads, sizeof *t.thread);
    int started = 0;
    double rate = 0;
    for (; t.thread && started < threads; started++) {
        t.thread[started] = (team_thread){.team = &t, .index = started};
        if (pthread_create(&t.thread[started].handle, NULL, team_main, &t.thread[started]) != 0) break;
    }
    /* Threads that will never come are counted, so that the others do not wait for them. */
    int complete = started == threads;
    if (!complete) atomic_fetch_add(&t.present, threads - started);
    for (int i = 0; i < started; i++) {
        pthread_join(t.thread[i].handle, NULL);
        rate += t.thread[i].rate;
    }
    free(t.thread);
    return complete ? rate : 0;
}

/* ---- Product ---- */

struct bench_product {
    const fy_kernels *kernels;
    int threads;
    int64_t row_tiles, column_tiles, depth;
    uint16_t *a, *b;
    unsigned char *scratch; /* per thread: a tile of sums, then what the kernel wants */
    _Atomic uint64_t next;
};

static size_t tile_bytes(void) { return sizeof(float) * FY_TILE_ROWS * FY_TILE_COLUMNS; }

static size_t scratch_stride(void) { return (tile_bytes() + fy_product_scratch_bytes() + 4095) / 4096 * 4096; }

static void *get(size_t bytes) { return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); }

/* Numbers of magnitude 1 to 2 with random signs and mantissas: neither zeros nor denormals. */
static void fill(uint16_t *values, int64_t count) {
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (uint16_t)(0x3f80u | (state >> 31) << 15 | (state >> 16 & 0x7f));
    }
}

bench_product *bench_product_create(ferry_isa isa, int threads, int64_t rows, int64_t columns, int64_t depth) {
    bench_product *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->threads = threads;
    p->row_tiles = fy_divide_up(rows, FY_TILE_ROWS);
    p->column_tiles = fy_divide_up(columns, FY_TILE_COLUMNS);
    p->depth = depth;
    int64_t a = p->row_tiles * FY_TILE_ROWS * depth, b = p->column_tiles * FY_TILE_COLUMNS * depth;
    p->a = get((size_t)a * sizeof *p->a);
    p->b = get((size_t)b * sizeof *p->b);
    p->scratch = get((size_t)threads * scratch_stride());
    if (!p->a || !p->b || !p->scratch || fy_kernels_select(isa, &p->kernels) != FERRY_OK) {
        bench_product_destroy(p);
        return NULL;
    }
    fill(p->a, a);
    fill(p->b, b);
    memset(p->scratch, 0, (size_t)threads * scratch_stride());
    return p;
}

void bench_product_destroy(bench_product *product) {
    if (!product) return;
    free(product->a);
    free(product->b);
    free(product->scratch);
    free(product);
}

static double product_unit(void *user, int thread) {
    bench_product *p = user;
    int64_t tile = (int64_t)(atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed) %
                             (uint64_t)(p->row_tiles * p->column_tiles));
    int64_t row = tile % p->row_tiles * FY_TILE_ROWS, column = tile / p->row_tiles * FY_TILE_COLUMNS;
    float *sums = (float *)(p->scratch + (size_t)thread * scratch_stride());
    p->kernels->product(sums, FY_TILE_COLUMNS, FY_TILE_ROWS, FY_TILE_COLUMNS, p->depth, 0,
                        (fy_operand){p->a + row * p->depth, p->depth, 1},
                        (fy_operand){p->b + column * p->depth, p->depth, 1}, (unsigned char *)sums + tile_bytes());
    return 2.0 * FY_TILE_ROWS * FY_TILE_COLUMNS * (double)p->depth;
}

double bench_product_run(bench_product *product, double seconds) {
    return team_run(product_unit, product, product->threads, seconds);
}

double bench_product_quick(int threads) {
    bench_product *p = bench_product_create(FERRY_ISA_AUTO, threads, 1024, 1024, 2048);
    double rate = p ? bench_product_run(p, 0.5) : 0;
    bench_product_destroy(p);
    return rate;
}

/* ---- Copy ---- */

/* Far beyond the caches of a core, so that memory is what is measured. */
static const size_t copy_bytes = (size_t)64 << 20;

static double copy_unit(void *user, int thread) {
    unsigned char *from = (unsigned char *)user + 2 * (size_t)thread * copy_bytes;
    memcpy(from + copy_bytes, from, copy_bytes);
    return 2.0 * (double)copy_bytes;
}

double bench_copy_quick(int threads) {
    size_t bytes = 2 * (size_t)threads * copy_bytes;
    unsigned char *memory = get(bytes);
    if (!memory) return 0;
    memset(memory, 1, bytes);
    double rate = team_run(copy_unit, memory, threads, 0.5);
    free(memory);
    return rate;
}
