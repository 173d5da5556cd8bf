/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward through ferry.h on the devices of this machine: ranks as threads (sharing devices) and as processes,
 * reports of bad input, a captured graph with changing data, a layer made while a stream records, a peer that does not
 * come, a peer that dies.
 *   api_check            all of it
 * Exit code 0: all passed. Run with CUDA_DEVICE_MAX_CONNECTIONS=32, so that the streams of ranks that share a device do
 * not share hardware queues.
 */
#include "rules/load.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { H = 512, I = 264, S = 128, E = 18, K = 4, TOKENS = 420, MOST = 8, MAX_TOKENS = 420 };

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                     \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define FERRY(call)                                                                                                    \
    do {                                                                                                               \
        ferry_status s_ = (call);                                                                                      \
        if (s_ != FERRY_OK) {                                                                                          \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, ferry_status_name(s_),                   \
                    ferry_last_error());                                                                               \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint16_t *x, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
static int64_t *ids;
static float *weights;
static int devices, failures;
static uint16_t *expected; /* [TOKENS][H], of one rank */

static void expect(int good, const char *what) {
    printf("%-4s %s\n", good ? "ok" : "FAIL", what);
    fflush(stdout);
    failures += !good;
}

static uint16_t *random_rows(int64_t n, float scale, unsigned seed) {
    uint16_t *p = malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = ((float)(seed >> 8) * 0x1p-24f - 0.5f) * 3.46f * scale;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        p[i] = (uint16_t)(bits >> 16);
    }
    return p;
}

static void make_problem(void) {
    x = random_rows(TOKENS * H, 1, 1);
    gate = random_rows((int64_t)E * I * H, 0.04f, 2);
    up = random_rows((int64_t)E * I * H, 0.04f, 3);
    down = random_rows((int64_t)E * I * H, 0.06f, 4);
    shared_gate = random_rows((int64_t)S * H, 0.04f, 5);
    shared_up = random_rows((int64_t)S * H, 0.04f, 6);
    shared_down = random_rows((int64_t)S * H, 0.06f, 7);
    ids = malloc(TOKENS * K * sizeof *ids);
    weights = malloc(TOKENS * K * sizeof *weights);
    unsigned seed = 9;
    for (int i = 0; i < TOKENS * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = seed >> 28 == 0 ? -1 : (int64_t)((seed >> 8) % E);
        weights[i] = (float)(seed >> 20) * 0x1p-12f;
    }
}

/* A rank's part of the problem on its device. */
typedef struct rank_data {
    int rank, nranks, device, first, tokens;
    void *x, *gate, *up, *down, *sg, *su, *sd, *ids, *weights, *out, *n, *expert_rows, *load;
    cudaStream_t stream;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_forward_args args;
} rank_data;

static void *upload(const void *from, int64_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, (size_t)bytes + 16));
    CUDA(cudaMemcpy(p, from, (size_t)bytes, cudaMemcpyHostToDevice));
    return p;
}

static ferry_comm_config comm_config(const ferry_bootstrap *bootstrap, int device) {
    ferry_comm_config c;
    ferry_comm_config_init(&c);
    c.backend = FERRY_CUDA;
    c.bootstrap = *bootstrap;
    c.device = device;
    c.enter_timeout_s = 8;
    c.progress_timeout_s = 8;
    return c;
}

static ferry_layer_config layer_config(int64_t ring_rows) {
    ferry_layer_config l;
    ferry_layer_config_init(&l);
    l.hidden = H;
    l.intermediate = I;
    l.shared = S;
    l.experts = E;
    l.slots = K;
    l.max_tokens = MAX_TOKENS;
    l.context_rows = 0;
    l.ring_rows = ring_rows;
    return l;
}

static void open_rank(rank_data *d, const ferry_comm_config *config, int64_t ring_rows) {
    d->rank = config->bootstrap.rank;
    d->nranks = config->bootstrap.nranks;
    d->device = config->device;
    CUDA(cudaSetDevice(d->device));
    d->first = (int)((int64_t)TOKENS * d->rank / d->nranks);
    d->tokens = (int)((int64_t)TOKENS * (d->rank + 1) / d->nranks) - d->first;
    FERRY(ferry_comm_create(config, &d->comm));
    ferry_layer_config l = layer_config(ring_rows);
    FERRY(ferry_layer_create(d->comm, &l, &d->layer));
    CUDA(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    int64_t local = ferry_layer_local_experts(d->layer, d->rank), e0 = ferry_layer_expert_id(d->layer, d->rank, 0);
    int64_t IH = (int64_t)I * H;
    d->gate = upload(gate + e0 * IH, local * IH * 2);
    d->up = upload(up + e0 * IH, local * IH * 2);
    d->down = upload(down + e0 * IH, local * IH * 2);
    d->sg = upload(shared_gate, (int64_t)S * H * 2);
    d->su = upload(shared_up, (int64_t)S * H * 2);
    d->sd = upload(shared_down, (int64_t)S * H * 2);
    d->x = upload(x + (int64_t)d->first * H, (int64_t)d->tokens * H * 2);
    d->ids = upload(ids + (int64_t)d->first * K, (int64_t)d->tokens * K * 8);
    d->weights = upload(weights + (int64_t)d->first * K, (int64_t)d->tokens * K * 4);
    d->n = upload(&d->tokens, 4);
    CUDA(cudaMalloc(&d->out, (size_t)MAX_TOKENS * H * 2));
    CUDA(cudaMalloc(&d->expert_rows, E * sizeof(int32_t)));
    CUDA(cudaMalloc(&d->load, sizeof(ferry_load)));
    ferry_forward_args_init(&d->args);
    d->args.num_tokens = d->n;
    d->args.x = d->x;
    d->args.ids = d->ids;
    d->args.ids_dtype = FERRY_I64;
    d->args.weights = d->weights;
    d->args.out = d->out;
    d->args.stream = d->stream;
    d->args.params.gate = (ferry_matrices){d->gate, NULL, IH, H, FERRY_BF16};
    d->args.params.up = (ferry_matrices){d->up, NULL, IH, H, FERRY_BF16};
    d->args.params.down = (ferry_matrices){d->down, NULL, IH, I, FERRY_BF16};
    d->args.params.shared_gate = (ferry_matrices){d->sg, NULL, 0, H, FERRY_BF16};
    d->args.params.shared_up = (ferry_matrices){d->su, NULL, 0, H, FERRY_BF16};
    d->args.params.shared_down = (ferry_matrices){d->sd, NULL, 0, S, FERRY_BF16};
}

static void close_rank(rank_data *d) {
    ferry_layer_destroy(d->layer);
    ferry_comm_destroy(d->comm);
    void *all[] = {d->gate, d->up,      d->down, d->sg, d->su,          d->sd,  d->x,
                   d->ids,  d->weights, d->out,  d->n,  d->expert_rows, d->load};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CUDA(cudaFree(all[i]));
    CUDA(cudaStreamDestroy(d->stream));
}

/* Runs and compares with the rows of one rank; 1 when all bits agree. */
static int forward_matches(rank_data *d) {
    int64_t bytes = (int64_t)d->tokens * H * 2;
    uint16_t *got = malloc((size_t)bytes + 1);
    CUDA(cudaMemsetAsync(d->out, 0xff, (size_t)bytes, d->stream));
    FERRY(ferry_forward(d->layer, &d->args));
    CUDA(cudaStreamSynchronize(d->stream));
    FERRY(ferry_comm_error(d->comm));
    CUDA(cudaMemcpy(got, d->out, (size_t)bytes, cudaMemcpyDeviceToHost));
    int same = !memcmp(got, expected + (int64_t)d->first * H, (size_t)bytes);
    free(got);
    return same;
}

/* ---- Load statistics ---- */
static int load_matches(rank_data *d) {
    int32_t rows[E], expected_rows[E] = {0}, expert_rank[E];
    ferry_load load, expected_load;
    int64_t scratch[MOST];
    for (int i = 0; i < TOKENS * K; i++)
        if (ids[i] >= 0) expected_rows[ids[i]]++;
    for (int r = 0; r < d->nranks; r++)
        for (int64_t l = 0; l < ferry_layer_local_experts(d->layer, r); l++)
            expert_rank[ferry_layer_expert_id(d->layer, r, l)] = r;
    fy_load_of(expected_rows, expert_rank, E, d->nranks, scratch, &expected_load);
    CUDA(cudaMemsetAsync(d->expert_rows, 0xff, sizeof rows, d->stream));
    CUDA(cudaMemsetAsync(d->load, 0xff, sizeof load, d->stream));
    d->args.expert_rows = d->expert_rows;
    d->args.load = d->load;
    FERRY(ferry_forward(d->layer, &d->args));
    d->args.expert_rows = NULL;
    d->args.load = NULL;
    CUDA(cudaMemcpyAsync(rows, d->expert_rows, sizeof rows, cudaMemcpyDeviceToHost, d->stream));
    CUDA(cudaMemcpyAsync(&load, d->load, sizeof load, cudaMemcpyDeviceToHost, d->stream));
    CUDA(cudaStreamSynchronize(d->stream));
    return !memcmp(rows, expected_rows, sizeof rows) && !memcmp(&load, &expected_load, sizeof load);
}

/* ---- Threads ---- */
typedef struct thread_job {
    ferry_thread_group *group;
    int rank, nranks, good;
    int64_t ring;
} thread_job;

static void *thread_rank(void *user) {
    thread_job *job = user;
    rank_data d;
    ferry_bootstrap b;
    FERRY(ferry_thread_group_bootstrap(job->group, job->rank, &b));
    ferry_comm_config c = comm_config(&b, job->rank % devices);
    open_rank(&d, &c, job->ring);
    job->good = 1;
    for (int i = 0; i < 5; i++) job->good &= forward_matches(&d);
    ferry_barrier(d.comm);
    if (!load_matches(&d)) {
        printf("     rank %d of %d: load statistics differ\n", job->rank, job->nranks);
        job->good = 0;
    }
    ferry_barrier(d.comm);
    close_rank(&d);
    return NULL;
}

static void check_threads(int nranks, int64_t ring) {
    thread_job job[MOST];
    pthread_t thread[MOST];
    ferry_thread_group *group;
    FERRY(ferry_thread_group_create(nranks, &group));
    for (int r = 0; r < nranks; r++) {
        job[r] = (thread_job){group, r, nranks, 0, ring};
        pthread_create(&thread[r], NULL, thread_rank, &job[r]);
    }
    int good = 1;
    for (int r = 0; r < nranks; r++) {
        pthread_join(thread[r], NULL);
        good &= job[r].good;
    }
    ferry_thread_group_destroy(group);
    char what[96];
    snprintf(what, sizeof what, "%d ranks as threads on %d devices, ring %lld: the bits of one rank, load", nranks,
             devices, (long long)ring);
    expect(good, what);
}

/* ---- One rank ---- */
static ferry_bootstrap alone(ferry_thread_group **group) {
    ferry_bootstrap b;
    FERRY(ferry_thread_group_create(1, group));
    FERRY(ferry_thread_group_bootstrap(*group, 0, &b));
    return b;
}

static void first_answer(void) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b = alone(&group);
    ferry_comm_config c = comm_config(&b, 0);
    open_rank(&d, &c, 0);
    FERRY(ferry_forward(d.layer, &d.args));
    CUDA(cudaStreamSynchronize(d.stream));
    CUDA(cudaMemcpy(expected, d.out, (size_t)TOKENS * H * 2, cudaMemcpyDeviceToHost));
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)TOKENS * H; i++)
        sum += (expected[i] & 0x7f80) == 0x7f80 ? 1e30 : (expected[i] != 0);
    expect(sum > 0.9 * TOKENS * H && sum < 1e29, "one rank gives numbers");
    ferry_stats stats = {.size = sizeof stats};
    FERRY(ferry_layer_stats(d.layer, &stats));
    ferry_plan plan = {.size = sizeof plan};
    FERRY(ferry_layer_get_plan(d.layer, &plan));
    printf(
        "     rows %lld pulls %lld steps %lld flop %lld; plan: symmetric %lld ring %lld tables %lld bytes, held %lld\n",
        (long long)stats.rows, (long long)stats.pulls, (long long)stats.steps, (long long)stats.flop,
        (long long)plan.symmetric_bytes, (long long)plan.ring_bytes, (long long)plan.table_bytes,
        (long long)stats.current_bytes);
    close_rank(&d);
    ferry_thread_group_destroy(group);
}

static void check_reports(void) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b = alone(&group);
    ferry_comm_config c = comm_config(&b, 0);
    open_rank(&d, &c, 0);
    int64_t bad = 12345678901, keep = ids[37 * K + 2];
    CUDA(cudaMemcpy((int64_t *)d.ids + 37 * K + 2, &bad, 8, cudaMemcpyHostToDevice));
    FERRY(ferry_forward(d.layer, &d.args));
    CUDA(cudaStreamSynchronize(d.stream));
    ferry_report report = {.size = sizeof report};
    ferry_status next = ferry_forward(d.layer, &d.args);
    expect(next == FERRY_E_BAD_ID, "a bad id is reported by the next call");
    CUDA(cudaStreamSynchronize(d.stream));
    ferry_status polled = ferry_layer_poll(d.layer, &report);
    expect(polled == FERRY_E_BAD_ID && report.token == 37 && report.slot == 2 && report.id == bad && report.count == 1,
           "poll has the bad id's place");
    CUDA(cudaMemcpy((int64_t *)d.ids + 37 * K + 2, &keep, 8, cudaMemcpyHostToDevice));
    if (polled != FERRY_E_BAD_ID) (void)ferry_forward(d.layer, &d.args);
    CUDA(cudaStreamSynchronize(d.stream));
    int32_t many = MAX_TOKENS + 1;
    CUDA(cudaMemcpy(d.n, &many, 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(d.out, 0xff, (size_t)TOKENS * H * 2));
    FERRY(ferry_forward(d.layer, &d.args));
    CUDA(cudaStreamSynchronize(d.stream));
    uint16_t some[H];
    CUDA(cudaMemcpy(some, d.out, sizeof some, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(d.n, &d.tokens, 4, cudaMemcpyHostToDevice));
    next = ferry_forward(d.layer, &d.args);
    expect(next == FERRY_E_TOO_MANY_TOKENS && some[0] == 0xffff,
           "too many tokens: nothing done, reported by the next call");
    expect(forward_matches(&d), "right again after it");
    close_rank(&d);
    ferry_thread_group_destroy(group);
}

static void check_graph(void) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b = alone(&group);
    ferry_comm_config c = comm_config(&b, 0);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    open_rank(&d, &c, 256);
    CUDA(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeGlobal));
    FERRY(ferry_forward(d.layer, &d.args));
    CUDA(cudaStreamEndCapture(d.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    int good = 1;
    uint16_t *got = malloc((size_t)TOKENS * H * 2);
    for (int i = 0; i < 200 && good; i++) {
        /* The same tokens, other numbers of them, starting elsewhere: rows of the answer move along. */
        int32_t n = i % 5 == 4 ? 0 : TOKENS - i % 7 * 50, first = i % 11 * 4 + n > TOKENS ? 0 : i % 11 * 4;
        CUDA(cudaMemcpyAsync(d.n, &n, 4, cudaMemcpyHostToDevice, d.stream));
        CUDA(cudaMemcpyAsync(d.x, x + (int64_t)first * H, (size_t)n * H * 2, cudaMemcpyHostToDevice, d.stream));
        CUDA(cudaMemcpyAsync(d.ids, ids + first * K, (size_t)n * K * 8, cudaMemcpyHostToDevice, d.stream));
        CUDA(cudaMemcpyAsync(d.weights, weights + first * K, (size_t)n * K * 4, cudaMemcpyHostToDevice, d.stream));
        CUDA(cudaMemsetAsync(d.out, 0xff, (size_t)TOKENS * H * 2, d.stream));
        CUDA(cudaGraphLaunch(exec, d.stream));
        CUDA(cudaMemcpyAsync(got, d.out, (size_t)TOKENS * H * 2, cudaMemcpyDeviceToHost, d.stream));
        CUDA(cudaStreamSynchronize(d.stream));
        good = !memcmp(got, expected + (int64_t)first * H, (size_t)n * H * 2) &&
               (n == TOKENS || got[(int64_t)n * H] == 0xffff);
    }
    expect(good, "a captured graph, 200 replays with other N and tokens");
    free(got);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    close_rank(&d);
    ferry_thread_group_destroy(group);
}

/* Records on a stream, in the mode that is the strictest to other threads, from the first meeting to the second. */
typedef struct recording {
    pthread_barrier_t meet;
    int device, good;
} recording;

static void *record(void *user) {
    recording *r = user;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    CUDA(cudaSetDevice(r->device));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    pthread_barrier_wait(&r->meet);
    pthread_barrier_wait(&r->meet);
    r->good = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
    if (graph) CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    return NULL;
}

/* What another thread records is not spoiled by layers and contexts that are made, used and destroyed meanwhile. */
static void check_made_meanwhile(void) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b = alone(&group);
    ferry_comm_config c = comm_config(&b, 0);
    open_rank(&d, &c, 0);
    recording other = {.device = d.device};
    pthread_t thread;
    pthread_barrier_init(&other.meet, NULL, 2);
    if (pthread_create(&thread, NULL, record, &other)) exit(2);
    pthread_barrier_wait(&other.meet);
    ferry_layer_config l = layer_config(128);
    ferry_layer *layer = NULL;
    ferry_context *context = NULL;
    int good = ferry_layer_create(d.comm, &l, &layer) == FERRY_OK &&
               ferry_context_create(layer, NULL, &context) == FERRY_OK && ferry_forward(layer, &d.args) == FERRY_OK;
    if (!good) printf("     %s\n", ferry_last_error());
    if (context) ferry_context_destroy(context);
    if (layer) ferry_layer_destroy(layer);
    pthread_barrier_wait(&other.meet);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&other.meet);
    expect(good && other.good && forward_matches(&d),
           "a layer is made, runs and goes while another thread records in global mode");
    close_rank(&d);
    ferry_thread_group_destroy(group);
}

/* ---- Faults, as processes where there are two devices, and threads otherwise ---- */
static void *late_rank(void *user) {
    thread_job *job = user;
    rank_data d;
    ferry_bootstrap b;
    FERRY(ferry_thread_group_bootstrap(job->group, job->rank, &b));
    ferry_comm_config c = comm_config(&b, job->rank % devices);
    c.enter_timeout_s = 1.5;
    open_rank(&d, &c, 0);
    job->good = forward_matches(&d);
    if (job->rank == 0) {
        FERRY(ferry_forward(d.layer, &d.args));
        CUDA(cudaStreamSynchronize(d.stream));
        usleep(50000);
        ferry_status status = ferry_comm_error(d.comm);
        printf("     %s\n", ferry_last_error());
        job->good &= status == FERRY_E_TIMEOUT;
    } else {
        usleep(2500000);
        job->good &= ferry_comm_error(d.comm) == FERRY_E_TIMEOUT;
    }
    close_rank(&d);
    return NULL;
}

static void check_late(void) {
    thread_job job[2];
    pthread_t thread[2];
    ferry_thread_group *group;
    FERRY(ferry_thread_group_create(2, &group));
    for (int r = 0; r < 2; r++) {
        job[r] = (thread_job){group, r, 2, 0, 0};
        pthread_create(&thread[r], NULL, late_rank, &job[r]);
    }
    for (int r = 0; r < 2; r++) pthread_join(thread[r], NULL);
    ferry_thread_group_destroy(group);
    expect(job[0].good && job[1].good, "a peer that does not enter: E_TIMEOUT on both, then destroyed");
}

/* A process of its own; `die`: rank 1 ends without a word while rank 0 waits for it. */
static int process_rank(int rank, int nranks, int die) {
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", nranks);
    setenv("WORLD_SIZE", text, 1);
    setenv("FERRY_JOB", die ? "api-check-die" : "api-check", 1);
    ferry_env_bootstrap *env;
    ferry_bootstrap b;
    rank_data d;
    FERRY(ferry_env_bootstrap_create(30, &env, &b));
    ferry_comm_config c = comm_config(&b, rank);
    c.enter_timeout_s = 30;
    open_rank(&d, &c, 0);
    int good = 1;
    for (int i = 0; i < 5; i++) good &= forward_matches(&d);
    if (die && rank == 1) _exit(9);
    if (die) {
        FERRY(ferry_forward(d.layer, &d.args));
        CUDA(cudaStreamSynchronize(d.stream));
        ferry_status status = ferry_comm_error(d.comm);
        printf("     %s\n", ferry_last_error());
        good &= status == FERRY_E_PEER;
    } else {
        FERRY(ferry_barrier(d.comm));
    }
    close_rank(&d);
    ferry_env_bootstrap_destroy(env);
    return good;
}

static int go_pipe[2][2]; /* [die] */

/* Processes are started before this one touches CUDA, and wait for the answer to compare with. */
static void start_processes(pid_t *pids, int nranks, int die) {
    for (int r = 0; r < nranks; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            char go;
            if (read(go_pipe[die][0], &go, 1) != 1) _exit(3);
            exit(process_rank(r, nranks, die) ? 0 : 1);
        }
    }
}

static void check_processes(const pid_t *pids, int nranks, int die) {
    int good = 1;
    for (int r = 0; r < nranks; r++)
        if (write(go_pipe[die][1], "g", 1) != 1) exit(2);
    for (int r = 0; r < nranks; r++) {
        int status;
        waitpid(pids[r], &status, 0);
        good &= WIFEXITED(status) && WEXITSTATUS(status) == (die && r == 1 ? 9 : 0);
    }
    char what[96];
    snprintf(what, sizeof what,
             die ? "%d processes, one dies: E_PEER, then destroyed" : "%d processes: the bits of one rank", nranks);
    expect(good, what);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    make_problem();
    /* Children need the answer: shared pages, made before they start and filled before they are told to go. */
    if (pipe(go_pipe[0]) || pipe(go_pipe[1])) return 2;
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), (off_t)TOKENS * H * 2)) return 2;
    expected = mmap(NULL, (size_t)TOKENS * H * 2, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (expected == MAP_FAILED) return 2;
    pid_t normal[2], dying[2];
    start_processes(normal, 2, 0);
    start_processes(dying, 2, 1);
    CUDA(cudaGetDeviceCount(&devices));
    first_answer();
    check_threads(1, 64);
    check_threads(2, 0);
    check_threads(3, 128);
    check_threads(4, 0);
    check_threads(8, 192);
    check_reports();
    check_graph();
    check_made_meanwhile();
    check_late();
    if (devices >= 2) {
        check_processes(normal, 2, 0);
        check_processes(dying, 2, 1);
    } else {
        printf("skip processes: one device\n");
        for (int i = 0; i < 2; i++) {
            kill(normal[i], SIGKILL);
            kill(dying[i], SIGKILL);
        }
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
