/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory for callers, and knobs, through ferry.h on the devices of this machine, ranks as threads and as
 * processes: peers' parts, a forward and a backward whose x lies in symmetric memory, the same bits from every knob,
 * and plans made ahead.
 *   sym_check            all of it
 * Exit code 0: all passed. Run with CUDA_DEVICE_MAX_CONNECTIONS=32, as api_check.
 */
#include "ferry/ferry.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { H = 264, I = 136, E = 6, K = 3, TOKENS = 300, MOST_RANKS = 3, STRIDE = H + 16, LOCAL = 6 };

#define CHECK(good)                                                                                                    \
    do {                                                                                                               \
        if (!(good)) {                                                                                                 \
            fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank, #good, ferry_last_error());          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CUDA(call) CHECK((call) == cudaSuccess)
#define FERRY(call) CHECK((call) == FERRY_OK)

typedef struct job {
    ferry_bootstrap bootstrap;
    int shared;
} job;

/* One rank's tensors. */
typedef struct tensors {
    int rank, ranks, tokens;
    cudaStream_t stream;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_forward_args f;
    ferry_backward_args b;
    uint16_t *x_host;
} tensors;

static void *random_there(int rank, int64_t count, float scale, unsigned seed) {
    uint16_t *host = malloc((size_t)count * 2), *there;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = ((float)(seed >> 8) * 0x1p-24f - 0.5f) * scale;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        host[i] = (uint16_t)(bits >> 16);
    }
    CUDA(cudaMalloc((void **)&there, (size_t)count * 2));
    CUDA(cudaMemcpy(there, host, (size_t)count * 2, cudaMemcpyHostToDevice));
    free(host);
    return there;
}

static void fill(tensors *t, int shared) {
    int rank = t->rank;
    int32_t ids[TOKENS * K];
    float weights[TOKENS * K];
    unsigned seed = 77u + (unsigned)rank;
    for (int i = 0; i < TOKENS * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = seed >> 28 == 0 ? -1 : (int32_t)((seed >> 8) % E);
        weights[i] = (float)(seed >> 20) * 0x1p-12f;
    }
    t->tokens = TOKENS - 40 * rank;
    t->x_host = malloc((size_t)TOKENS * H * 2);
    ferry_forward_args *f = &t->f;
    ferry_forward_args_init(f);
    int32_t *n;
    CUDA(cudaMalloc((void **)&n, 4));
    CUDA(cudaMemcpy(n, &t->tokens, 4, cudaMemcpyHostToDevice));
    f->num_tokens = n;
    f->x = random_there(rank, TOKENS * H, 3, 5u + (unsigned)rank);
    CUDA(cudaMemcpy(t->x_host, f->x, (size_t)TOKENS * H * 2, cudaMemcpyDeviceToHost));
    void *to;
    CUDA(cudaMalloc(&to, sizeof ids));
    CUDA(cudaMemcpy(to, ids, sizeof ids, cudaMemcpyHostToDevice));
    f->ids = to;
    CUDA(cudaMalloc(&to, sizeof weights));
    CUDA(cudaMemcpy(to, weights, sizeof weights, cudaMemcpyHostToDevice));
    f->weights = to;
    ferry_matrices in = {random_there(rank, LOCAL * I * H, 0.2f, 11), NULL, I * H, H, FERRY_BF16};
    ferry_matrices out = {random_there(rank, LOCAL * I * H, 0.2f, 12), NULL, I * H, I, FERRY_BF16};
    f->params.gate = f->params.up = in;
    f->params.down = out;
    if (shared) {
        f->params.shared_gate = f->params.shared_up = in;
        f->params.shared_down = out;
    }
    CUDA(cudaMalloc(&f->out, (size_t)TOKENS * H * 2));
    f->stream = t->stream;
    ferry_backward_args_init(&t->b);
    t->b.dout = random_there(rank, TOKENS * H, 1, 21);
    t->b.params = f->params;
    CUDA(cudaMalloc(&t->b.dx, (size_t)TOKENS * H * 2));
    t->b.grads.gate.to = in;
    CUDA(cudaMalloc(&t->b.grads.gate.to.base, (size_t)LOCAL * I * H * 2));
    t->b.stream = t->stream;
}

static ferry_layer_config config_of(int shared) {
    ferry_layer_config c;
    ferry_layer_config_init(&c);
    c.hidden = H;
    c.intermediate = I;
    c.shared = shared ? I : 0;
    c.experts = E;
    c.slots = K;
    c.max_tokens = TOKENS;
    c.context_rows = 128; /* some rows are pulled again by the backward */
    c.ring_rows = 256;
    c.tune_file = "";
    return c;
}

/* A forward and its backward; out, dx and a gradient, of the tokens that there are. */
static void run(tensors *t, const void *x, int64_t stride, uint16_t *result) {
    int rank = t->rank;
    size_t rows = (size_t)t->tokens * H * 2, gradient = (size_t)ferry_layer_local_experts(t->layer, rank) * I * H * 2;
    t->f.x = x;
    t->f.x_stride = stride;
    t->f.context = t->b.context = t->context;
    CUDA(cudaMemsetAsync(t->f.out, 0xff, rows, t->stream));
    CUDA(cudaMemsetAsync(t->b.dx, 0xff, rows, t->stream));
    FERRY(ferry_forward(t->layer, &t->f));
    FERRY(ferry_backward(t->layer, &t->b));
    CUDA(cudaStreamSynchronize(t->stream));
    FERRY(ferry_comm_error(t->comm));
    memset(result, 0, (size_t)(2 * TOKENS + LOCAL * I) * H * 2);
    CUDA(cudaMemcpy(result, t->f.out, rows, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(result + TOKENS * H, t->b.dx, rows, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(result + 2 * TOKENS * H, t->b.grads.gate.to.base, gradient, cudaMemcpyDeviceToHost));
}

/* Every rank's pattern through every rank's pointers, also inside the block. */
static void check_peers(const tensors *t, uint8_t *block, size_t bytes) {
    int rank = t->rank;
    uint8_t seen[2];
    void *peer;
    CUDA(cudaMemset(block, 1 + rank, bytes));
    CUDA(cudaDeviceSynchronize());
    FERRY(ferry_barrier(t->comm));
    for (int r = 0; r < t->ranks; r++) {
        FERRY(ferry_sym_peer(t->comm, block + bytes - 2, r, &peer));
        CUDA(cudaMemcpy(seen, peer, 2, cudaMemcpyDefault));
        CHECK(seen[0] == 1 + r && seen[1] == 1 + r);
    }
    CHECK(ferry_sym_peer(t->comm, &peer, 0, &peer) == FERRY_E_INVALID);
    FERRY(ferry_barrier(t->comm));
    void *refused;
    CHECK(ferry_sym_alloc(t->comm, (size_t)(1 + rank), &refused) == (t->ranks > 1 ? FERRY_E_MISMATCH : FERRY_OK));
}

static void open_layer(tensors *t, const ferry_layer_config *c) {
    int rank = t->rank;
    FERRY(ferry_layer_create(t->comm, c, &t->layer));
    FERRY(ferry_context_create(t->layer, NULL, &t->context));
}

static void close_layer(tensors *t) {
    ferry_context_destroy(t->context);
    ferry_layer_destroy(t->layer);
}

/* The same bits from layers with every knob, whose plans are those made ahead. */
static void check_knobs(tensors *t, int shared, const void *x, const uint16_t *expected, uint16_t *result) {
    static const int knobs[][4] = {{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 4, 0}, {2, 2, 8, 12}};
    int rank = t->rank;
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        ferry_layer_config c = config_of(shared);
        ferry_plan plan = {.size = sizeof plan}, ahead = plan;
        c.pull_warps = knobs[i][0];
        c.fan_out = knobs[i][1];
        c.comm_sms = knobs[i][2];
        c.sm_margin = knobs[i][3];
        open_layer(t, &c);
        FERRY(ferry_layer_get_plan(t->layer, &plan));
        FERRY(ferry_layer_plan(&c, FERRY_CUDA, rank, t->ranks, 0, plan.multiprocessors + c.sm_margin, &ahead));
        CHECK(!memcmp(&plan, &ahead, sizeof plan));
        CHECK(knobs[i][2] == 0 || plan.comm_sms == knobs[i][2]);
        run(t, x, 0, result);
        CHECK(!memcmp(result, expected, (size_t)(2 * TOKENS + LOCAL * I) * H * 2));
        close_layer(t);
    }
}

static void rank_main(const job *j) {
    tensors t = {.rank = j->bootstrap.rank, .ranks = j->bootstrap.nranks};
    int rank = t.rank, devices;
    size_t bytes = (size_t)(2 * TOKENS + LOCAL * I) * H * 2;
    uint16_t *expected = malloc(bytes), *result = malloc(bytes);
    ferry_comm_config config;
    ferry_layer_config layer = config_of(j->shared);
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(rank % devices));
    CUDA(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
    ferry_comm_config_init(&config);
    config.backend = FERRY_CUDA;
    config.bootstrap = j->bootstrap;
    config.device = rank % devices;
    config.enter_timeout_s = config.progress_timeout_s = 10;
    FERRY(ferry_comm_create(&config, &t.comm));
    fill(&t, j->shared);
    open_layer(&t, &layer);
    const void *own_x = t.f.x;
    run(&t, own_x, 0, expected);

    void *small, *large;
    size_t x_bytes = (size_t)TOKENS * H * 2, strided = (size_t)TOKENS * STRIDE * 2;
    FERRY(ferry_sym_alloc(t.comm, x_bytes, &small));
    FERRY(ferry_sym_alloc(t.comm, strided + 4096, &large));
    check_peers(&t, small, x_bytes);
    CUDA(cudaMemcpy(small, t.x_host, x_bytes, cudaMemcpyHostToDevice));
    run(&t, small, 0, result);
    CHECK(!memcmp(result, expected, bytes));
    /* Inside a block, at another place on every rank, and with gaps between the rows. */
    uint8_t *inside = (uint8_t *)large + 256 * (1 + rank);
    CUDA(cudaMemset(large, 0xff, strided + 4096));
    CUDA(cudaMemcpy2D(inside, STRIDE * 2, t.x_host, H * 2, H * 2, TOKENS, cudaMemcpyHostToDevice));
    run(&t, inside, STRIDE, result);
    CHECK(!memcmp(result, expected, bytes));
    run(&t, rank == 0 ? small : own_x, 0, result); /* some ranks' tokens are staged */
    CHECK(!memcmp(result, expected, bytes));
    run(&t, own_x, 0, result);
    CHECK(!memcmp(result, expected, bytes));
    close_layer(&t);
    check_knobs(&t, j->shared, small, expected, result);

    ferry_sym_free(t.comm, large);
    ferry_comm_destroy(t.comm); /* takes the block that is left along */
    free(expected);
    free(result);
}

static void *thread_main(void *argument) {
    rank_main(argument);
    return NULL;
}

static void run_threads(int ranks, int shared) {
    ferry_thread_group *group;
    pthread_t thread[MOST_RANKS];
    job jobs[MOST_RANKS];
    int rank = -1;
    FERRY(ferry_thread_group_create(ranks, &group));
    for (int r = 0; r < ranks; r++) {
        jobs[r].shared = shared;
        FERRY(ferry_thread_group_bootstrap(group, r, &jobs[r].bootstrap));
        pthread_create(&thread[r], NULL, thread_main, &jobs[r]);
    }
    for (int r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
    ferry_thread_group_destroy(group);
    printf("ok   %d ranks as threads%s\n", ranks, shared ? ", a shared expert" : "");
    fflush(stdout);
}

/* In children, before this process has touched a device. */
static int run_processes(int ranks) {
    int bad = 0, status;
    char text[32];
    for (int r = 0; r < ranks; r++) {
        if (fork() != 0) continue;
        int rank = r, devices;
        ferry_env_bootstrap *env;
        job j = {.shared = 1};
        CUDA(cudaGetDeviceCount(&devices));
        if (devices < ranks) exit(77);
        snprintf(text, sizeof text, "%d", r);
        setenv("RANK", text, 1);
        snprintf(text, sizeof text, "%d", ranks);
        setenv("WORLD_SIZE", text, 1);
        snprintf(text, sizeof text, "sym_check-%d", (int)getppid());
        setenv("FERRY_JOB", text, 1);
        FERRY(ferry_env_bootstrap_create(20, &env, &j.bootstrap));
        rank_main(&j);
        ferry_env_bootstrap_destroy(env);
        exit(0);
    }
    while (wait(&status) > 0)
        if (status != 0) bad = WIFEXITED(status) && WEXITSTATUS(status) == 77 ? 77 : 1;
    printf("%s %d ranks as processes\n", bad == 0 ? "ok  " : bad == 77 ? "skip" : "FAIL", ranks);
    fflush(stdout);
    return bad == 1;
}

int main(void) {
    int bad = run_processes(2);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int shared = 0; shared < 2; shared++) run_threads(ranks, shared);
    return bad;
}
