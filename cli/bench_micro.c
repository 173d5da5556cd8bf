/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `ferry bench --micro`. Every rank has a source and a target of rows in symmetric memory, and copies
 * between its own and its peers', by kernels, in an order that is random and the same in every run. Flags lie behind
 * the target. All ranks meet before each measurement, whoever takes part in it.
 */
#include "cli/bench_micro.h"

#include "cli/launch.h"
#include "cli/message.h"

const int micro_counts[MICRO_COUNTS] = {1, 2, 4, 8, 16, 32, 0};

const char *micro_no_peers(const bench_options *o, const cli_devices *devices) {
    if (o->ranks == 1) return "there is one rank";
    return devices->count < o->ranks ? "ranks share a GPU" : NULL;
}

#ifdef FERRY_HAVE_CUDA
#include "cli/bench_lane.h"
#include "cli/bench_micro_kernels.h"
#include "cli/spread.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct micro_job {
    const bench_options *options;
    const cli_devices *devices;
    bench_gates *gates;
    micro_result *results; /* [ranks] */
} micro_job;

typedef struct micro_rank {
    const micro_job *job;
    micro_result *result;
    int rank, ranks;
    cli_device device;
    ferry_comm *comm;
    bench_lane lane;
    char *memory;                 /* source, target, flags */
    char *part[MICRO_MOST_PEERS]; /* of every rank, as this one reaches it */
    int32_t *from_row, *to_row;   /* on the device */
    uint32_t *wrong;
    uint64_t *ns;
    uint32_t turns[MICRO_DIRECTIONS]; /* signalled so far: the flags count on */
    char why[300];                    /* the first failure */
} micro_rank;

static const size_t half = (size_t)MICRO_ROWS * MICRO_ROW_BYTES;

static char *target(micro_rank *m, int rank) { return m->part[rank] + half; }

/* Heard and answered, a cache line each, for each direction. */
static uint32_t *flag(micro_rank *m, int rank, micro_direction direction, int answered) {
    return (uint32_t *)(m->part[rank] + 2 * half + (size_t)(2 * direction + answered) * 256);
}

/* Keeps the first failure. 1 when there is none. */
static int good(micro_rank *m, const char *doing, const char *why) {
    if (why && !m->why[0]) snprintf(m->why, sizeof m->why, "%s: %s", doing, why);
    return !m->why[0];
}

static int good_status(micro_rank *m, const char *doing, ferry_status status) {
    return good(m, doing, status ? ferry_last_error() : NULL);
}

static int good_cuda(micro_rank *m, const char *doing, cudaError_t error) {
    return good(m, doing, error == cudaSuccess ? NULL : cudaGetErrorString(error));
}

/* ---- Setting up ---- */

static void shuffle(int32_t *rows, uint64_t seed) {
    uint64_t state = seed;
    for (int i = 0; i < MICRO_ROWS; i++) rows[i] = i;
    for (int i = MICRO_ROWS - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((state >> 33) % (uint64_t)(i + 1));
        int32_t kept = rows[i];
        rows[i] = rows[j];
        rows[j] = kept;
    }
}

static int32_t *random_order(micro_rank *m, uint64_t seed) {
    int32_t *rows = malloc(MICRO_ROWS * sizeof *rows), *there = NULL;
    if (rows) {
        shuffle(rows, seed);
        there = cli_device_in(&m->device, rows, MICRO_ROWS * sizeof *rows);
    }
    free(rows);
    good(m, "the order of rows", there ? NULL : m->device.why[0] ? m->device.why : "no memory");
    return there;
}

static int open_comm(micro_rank *m, const ferry_bootstrap *bootstrap) {
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.backend = FERRY_CUDA;
    config.bootstrap = *bootstrap;
    config.device = m->device.index;
    void *memory = NULL, *peer = NULL;
    int done = good_status(m, "ferry_comm_create", ferry_comm_create(&config, &m->comm)) &&
               good_status(m, "ferry_sym_alloc", ferry_sym_alloc(m->comm, 2 * half + 4096, &memory));
    m->memory = memory;
    for (int r = 0; r < m->ranks && done; r++) {
        done = good_status(m, "ferry_sym_peer", ferry_sym_peer(m->comm, memory, r, &peer));
        m->part[r] = peer;
    }
    return done;
}

static int set_up(micro_rank *m, const ferry_bootstrap *bootstrap) {
    if (!open_comm(m, bootstrap)) return 0;
    m->from_row = random_order(m, 1);
    m->to_row = random_order(m, 2);
    m->wrong = cli_device_alloc(&m->device, sizeof *m->wrong);
    m->ns = cli_device_alloc(&m->device, sizeof *m->ns);
    return good(m, "memory", m->device.why[0] ? m->device.why : NULL) &&
           good_cuda(m, "loading kernels", micro_load()) &&
           good_cuda(m, "filling", micro_fill(m->memory, MICRO_ROWS, MICRO_ROW_BYTES, m->device.stream)) &&
           cli_device_wait(&m->device) &&
           good(m, "gates", bench_lane_open(&m->lane, &m->device, m->job->gates, m->rank, m->ranks)) &&
           /* What is behind a gate waits for all ranks, and an allocation may wait for what is on its GPU. */
           good_status(m, "ferry_barrier", ferry_barrier(m->comm));
}

/* ---- Copies ---- */

/* 0: this rank takes no part. */
static int plan_copy(micro_rank *m, micro_direction direction, micro_pattern pattern, micro_copy *c) {
    *c = (micro_copy){.from_row = m->from_row, .to_row = m->to_row, .rows = MICRO_ROWS, .row_bytes = MICRO_ROW_BYTES};
    if (pattern == MICRO_ONE_WAY && m->rank != 0) return 0;
    /* Ranks begin with different peers. */
    for (int i = 0; i < m->ranks; i++) {
        int peer = (m->rank + i) % m->ranks;
        if (pattern == MICRO_HOT_OWNER ? peer != 0 : peer == m->rank) continue;
        c->from[c->peers] = direction == MICRO_PULL ? m->part[peer] : m->memory;
        c->to[c->peers++] = direction == MICRO_PULL ? target(m, m->rank) : target(m, peer);
    }
    return 1;
}

static micro_copy local_copy(micro_rank *m) {
    return (micro_copy){.from = {m->memory},
                        .to = {target(m, m->rank)},
                        .from_row = m->from_row,
                        .to_row = m->to_row,
                        .peers = 1,
                        .rows = MICRO_ROWS,
                        .row_bytes = MICRO_ROW_BYTES};
}

/* By kernel, or by the copy engine where `c` is NULL. */
typedef struct timed_copy {
    const micro_copy *c;
    int blocks, takes_part;
    const void *from;
    void *to;
} timed_copy;

static int enqueue(micro_rank *m, const timed_copy *t) {
    if (!t->takes_part) return 1;
    cudaStream_t stream = m->device.stream;
    return good_cuda(m, "copying",
                     t->c ? micro_copy_rows(t->c, t->blocks, stream)
                          : cudaMemcpyAsync(t->to, t->from, half, cudaMemcpyDefault, stream));
}

/* Median over repetitions after one that does not count; 0 on failure and for a rank that takes no part. */
static double seconds_of(micro_rank *m, const timed_copy *t) {
    double seconds[BENCH_MAX_REPEAT];
    for (int64_t i = -1; i < m->job->options->repeat; i++) {
        int done = good(m, "gate", bench_lane_begin(&m->lane)) && good(m, "meeting", bench_lane_meet(&m->lane)) &&
                   good(m, "marking", bench_lane_mark(&m->lane)) && enqueue(m, t) &&
                   good(m, "marking", bench_lane_mark(&m->lane)) &&
                   good(m, "running", bench_lane_go(&m->lane, m->comm));
        if (!done) return 0;
        if (i >= 0) seconds[i] = bench_lane_between(&m->lane, 0, 1);
    }
    return t->takes_part ? spread_of(seconds, m->job->options->repeat).median : 0;
}

static double rows_seconds(micro_rank *m, const micro_copy *c, int takes_part, int count) {
    timed_copy t = {.c = c, .blocks = count ? count : m->job->devices->processors, .takes_part = takes_part};
    return seconds_of(m, &t);
}

/* A copy that is wrong measures nothing. The target is spoilt before. */
static int check_copy(micro_rank *m, micro_direction direction) {
    micro_copy c;
    uint32_t wrong = 0;
    plan_copy(m, direction, MICRO_BOTH_WAYS, &c);
    int done = cli_device_fill(&m->device, target(m, m->rank), 0xff, half) && cli_device_wait(&m->device) &&
               good_status(m, "ferry_barrier", ferry_barrier(m->comm)) && rows_seconds(m, &c, 1, 0) > 0 &&
               good_status(m, "ferry_barrier", ferry_barrier(m->comm)) &&
               cli_device_fill(&m->device, m->wrong, 0, sizeof wrong) &&
               good_cuda(m, "comparing", micro_compare_rows(&c, m->wrong, m->device.stream)) &&
               cli_device_copy(&m->device, &wrong, m->wrong, sizeof wrong) &&
               good_status(m, "ferry_barrier", ferry_barrier(m->comm));
    if (!done) return good(m, "checking copies", m->device.why[0] ? m->device.why : "failed");
    return good(m, direction == MICRO_PULL ? "pulls" : "pushes", wrong ? "rows arrived wrong" : NULL);
}

static int measure_local(micro_rank *m) {
    micro_copy c = local_copy(m);
    for (int i = 0; i < MICRO_COUNTS; i++) m->result->local_s[i] = rows_seconds(m, &c, 1, micro_counts[i]);
    timed_copy engine = {.takes_part = 1, .from = m->memory, .to = target(m, m->rank)};
    m->result->engine_local_s = seconds_of(m, &engine);
    return !m->why[0];
}

static int measure_rows(micro_rank *m) {
    for (micro_direction d = 0; d < MICRO_DIRECTIONS; d++) {
        if (!check_copy(m, d)) return 0;
        for (micro_pattern p = 0; p < MICRO_PATTERNS; p++) {
            micro_copy c;
            int takes_part = plan_copy(m, d, p, &c);
            for (int i = 0; i < MICRO_COUNTS; i++)
                m->result->rows_s[d][p][i] = rows_seconds(m, &c, takes_part, micro_counts[i]);
        }
    }
    for (int both = 0; both < 2; both++) {
        timed_copy engine = {
            .takes_part = both || m->rank == 0, .from = m->part[(m->rank + 1) % m->ranks], .to = target(m, m->rank)};
        m->result->engine_s[both] = seconds_of(m, &engine);
    }
    return !m->why[0];
}

/* ---- Signals ---- */

/* Pull: a block of rank 0 reads from rank 1, a second block on its own device listens. Push: rank 1 listens. */
static double signal_seconds(micro_rank *m, micro_direction direction, int bytes, int signals) {
    int pull = direction == MICRO_PULL, listener = pull ? 0 : 1, peer = m->ranks > 1 ? 1 : 0;
    micro_signal s = {.from = pull ? m->part[peer] : m->memory,
                      .to = pull ? target(m, m->rank) : target(m, peer),
                      .bytes = bytes,
                      .heard = signals ? flag(m, listener, direction, 0) : NULL,
                      .answered = signals ? flag(m, 0, direction, 1) : NULL,
                      .first = m->turns[direction],
                      .turns = MICRO_TURNS,
                      .one_device = pull,
                      .ns = m->ns};
    micro_end end = m->rank != 0 ? MICRO_LISTENER : pull && signals ? MICRO_BOTH_ENDS : MICRO_SPEAKER;
    int takes_part = m->rank == 0 || (m->rank == listener && signals);
    uint64_t ns = 0;
    if (signals) m->turns[direction] += MICRO_TURNS;
    int done = good(m, "gate", bench_lane_begin(&m->lane)) && good(m, "meeting", bench_lane_meet(&m->lane)) &&
               (!takes_part || good_cuda(m, "signalling", micro_run_signal(&s, end, m->device.stream))) &&
               good(m, "running", bench_lane_go(&m->lane, m->comm)) &&
               (m->rank != 0 || cli_device_copy(&m->device, &ns, m->ns, sizeof ns));
    if (done && m->rank == 0) good(m, "a signal", ns ? NULL : "it did not arrive within a second");
    return 1e-9 * (double)ns / MICRO_TURNS;
}

static int measure_signals(micro_rank *m, micro_direction d) {
    signal_seconds(m, d, 0, 1); /* warms up */
    m->result->trip_s[d] = signal_seconds(m, d, 0, 1);
    m->result->bare_s[d] = signal_seconds(m, d, MICRO_BLOCK_BYTES, 0);
    m->result->signalled_s[d] = signal_seconds(m, d, MICRO_BLOCK_BYTES, 1);
    return !m->why[0];
}

static int micro_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const micro_job *job = user;
    micro_rank m = {.job = job, .result = &job->results[rank], .rank = rank, .ranks = (int)job->options->ranks};
    int remote = !micro_no_peers(job->options, job->devices);
    if (!cli_device_open(&m.device, FERRY_CUDA, rank)) return cli_fail("rank %d: %s", rank, m.device.why);
    if (set_up(&m, bootstrap) && measure_local(&m) && remote && measure_rows(&m) && measure_signals(&m, MICRO_PULL))
        measure_signals(&m, MICRO_PUSH);
    if (m.why[0]) bench_lane_give_up(job->gates, rank);
    cli_device_wait(&m.device);
    bench_lane_close(&m.lane);
    if (m.memory) ferry_sym_free(m.comm, m.memory);
    ferry_comm_destroy(m.comm);
    cli_device_close(&m.device);
    return m.why[0] ? cli_fail("rank %d: %s", rank, m.why) : CLI_OK;
}

int bench_micro(const bench_options *o, const cli_devices *devices, bench_gates *gates) {
    micro_job job = {.options = o, .devices = devices, .gates = gates};
    cli_launch_options launch = {.nranks = (int)o->ranks, .processes = (int)o->processes};
    if (o->ranks > MICRO_MOST_PEERS) return cli_usage("--micro: at most %d ranks", MICRO_MOST_PEERS);
    size_t bytes = (size_t)o->ranks * sizeof *job.results;
    job.results = cli_shared_alloc(bytes);
    if (!job.results) return cli_fail("no memory for the results");
    int code = cli_launch(&launch, micro_main, &job);
    if (!code) code = bench_micro_report(o, devices, job.results);
    cli_shared_free(job.results, bytes);
    return code;
}
#else
int bench_micro(const bench_options *o, const cli_devices *devices, bench_gates *gates) {
    (void)o, (void)devices, (void)gates;
    return cli_fail("this build has no CUDA backend");
}
#endif
