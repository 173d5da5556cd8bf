/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward through ferry.h: the CUDA backend against the CPU backend, and its own bits over ranks, rings,
 * contexts, parts, gradient types, several contexts in flight and a captured graph; words that say when gradients are
 * there, a slow rank beside a fast one, refused forwards, and contexts that are destroyed with calls in flight.
 *   backward_check            all of it
 * Exit code 0: all passed. Run with CUDA_DEVICE_MAX_CONNECTIONS=32, so that the streams of ranks that share a device do
 * not share hardware queues.
 */
#include "ferry/ferry.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { H = 512, I = 264, S = 136, E = 18, K = 4, TOKENS = 420, MOST = 8, GRADS = 6 };

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

static uint16_t *x[2], *dout[2], *weight[GRADS]; /* gate, up, down, shared likewise; two batches of tokens */
static int64_t *ids[2];
static float *router[2];
static int devices, failures;
static float limit;

/* What a call gives, of one rank's tokens and experts or of all. */
typedef struct answer {
    uint16_t *out, *dx;
    float *dw;
    float *grad[GRADS];
} answer;

static const char *const names[4 + GRADS] = {"out",  "dx",          "dw",        "gate",        "up",
                                             "down", "shared gate", "shared up", "shared down", ""};

static int64_t grad_count(int g, int64_t experts) { return g < 3 ? experts * I * H : (int64_t)S * H; }

static answer new_answer(int64_t tokens, int64_t experts) {
    answer a;
    a.out = calloc((size_t)tokens * H + 1, 2);
    a.dx = calloc((size_t)tokens * H + 1, 2);
    a.dw = calloc((size_t)tokens * K + 1, 4);
    for (int g = 0; g < GRADS; g++) a.grad[g] = calloc((size_t)grad_count(g, experts) + 1, 4);
    return a;
}

static void free_answer(answer *a) {
    free(a->out);
    free(a->dx);
    free(a->dw);
    for (int g = 0; g < GRADS; g++) free(a->grad[g]);
}

static void expect(int good, const char *what) {
    printf("%-4s %s\n", good ? "ok" : "FAIL", what);
    fflush(stdout);
    failures += !good;
}

static uint16_t *random_rows(int64_t n, float scale, uint64_t seed) {
    uint16_t *p = malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++) {
        float v = 0;
        for (int q = 0; q < 3; q++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            v += (float)(seed >> 40) * 0x1p-24f - 0.5f;
        }
        v *= 2 * scale;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        p[i] = (uint16_t)(bits >> 16);
    }
    return p;
}

static void make_problem(void) {
    for (int b = 0; b < 2; b++) {
        x[b] = random_rows(TOKENS * H, 1, 1 + (unsigned)b);
        dout[b] = random_rows(TOKENS * H, 1, 21 + (unsigned)b);
        ids[b] = malloc(TOKENS * K * sizeof **ids);
        router[b] = malloc(TOKENS * K * sizeof **router);
        uint64_t seed = 9 + (uint64_t)b;
        for (int i = 0; i < TOKENS * K; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            /* One expert is popular, one has no rows. */
            int64_t id = seed >> 60 == 0 ? -1 : seed >> 61 == 1 ? 5 : (int64_t)((seed >> 33) % (E - 1));
            ids[b][i] = id;
            router[b][i] = id < 0 ? NAN : seed >> 59 == 7 ? 0 : (float)(int)(seed >> 40) * 0x1p-24f - 0.3f;
        }
    }
    for (int g = 0; g < GRADS; g++)
        weight[g] = random_rows(grad_count(g, E), g % 3 < 2 ? 0.05f : 0.08f, 31 + (unsigned)g);
}

/* A rank's part of the problem, on its device or on the host. */
typedef struct rank_data {
    int rank, nranks, device, cuda, first, tokens;
    int64_t local, e0;
    void *x[2], *dout[2], *ids[2], *router[2], *w[GRADS], *out, *dx, *dw, *grad[GRADS], *kept;
    int32_t *n;
    int f32;
    cudaStream_t stream;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context[2];
    ferry_backward_args back;
    ferry_forward_args forward[2];
} rank_data;

static void *room(const rank_data *d, int64_t bytes) {
    void *p = NULL;
    if (d->cuda)
        CUDA(cudaMalloc(&p, (size_t)bytes + 256));
    else
        p = aligned_alloc(256, ((size_t)bytes + 511) / 256 * 256);
    return p;
}

static void copy(const rank_data *d, void *to, const void *from, int64_t bytes) {
    if (d->cuda)
        CUDA(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDefault));
    else
        memcpy(to, from, (size_t)bytes);
}

static void *upload(const rank_data *d, const void *from, int64_t bytes) {
    void *p = room(d, bytes);
    copy(d, p, from, bytes);
    return p;
}

static void fill(const rank_data *d, void *p, int byte, int64_t bytes) {
    if (d->cuda)
        CUDA(cudaMemset(p, byte, (size_t)bytes));
    else
        memset(p, byte, (size_t)bytes);
}

static void drop(const rank_data *d, void *p) {
    if (d->cuda)
        CUDA(cudaFree(p));
    else
        free(p);
}

static int compute_workers[MOST]; /* of each rank; 0: the library's choice */

static void open_rank(rank_data *d, const ferry_bootstrap *bootstrap, int cuda, int64_t ring, int64_t context_rows,
                      int f32) {
    memset(d, 0, sizeof *d);
    d->cuda = cuda;
    d->f32 = f32;
    d->rank = bootstrap->rank;
    d->nranks = bootstrap->nranks;
    d->device = cuda ? d->rank % devices : 0;
    CUDA(cudaSetDevice(d->device));
    d->first = (int)((int64_t)TOKENS * d->rank / d->nranks);
    d->tokens = (int)((int64_t)TOKENS * (d->rank + 1) / d->nranks) - d->first;
    ferry_comm_config c;
    ferry_comm_config_init(&c);
    c.backend = cuda ? FERRY_CUDA : FERRY_CPU;
    c.bootstrap = *bootstrap;
    c.device = d->device;
    c.enter_timeout_s = 8;
    c.progress_timeout_s = 4;
    if (cuda) c.compute_workers = compute_workers[d->rank];
    FERRY(ferry_comm_create(&c, &d->comm));
    ferry_layer_config l;
    ferry_layer_config_init(&l);
    l.hidden = H;
    l.intermediate = I;
    l.shared = S;
    l.experts = E;
    l.slots = K;
    l.max_tokens = TOKENS;
    l.context_rows = context_rows;
    l.ring_rows = ring;
    l.swiglu_limit = limit;
    FERRY(ferry_layer_create(d->comm, &l, &d->layer));
    CUDA(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    d->local = ferry_layer_local_experts(d->layer, d->rank);
    d->e0 = ferry_layer_expert_id(d->layer, d->rank, 0);
    d->n = upload(d, &d->tokens, 4);
    d->out = room(d, (int64_t)TOKENS * H * 2);
    d->dx = room(d, (int64_t)TOKENS * H * 2);
    d->dw = room(d, TOKENS * K * 4);
    ferry_backward_args_init(&d->back);
    ferry_matrices *param[GRADS] = {&d->back.params.gate,      &d->back.params.up,
                                    &d->back.params.down,      &d->back.params.shared_gate,
                                    &d->back.params.shared_up, &d->back.params.shared_down};
    ferry_gradient *to[GRADS] = {&d->back.grads.gate,        &d->back.grads.up,        &d->back.grads.down,
                                 &d->back.grads.shared_gate, &d->back.grads.shared_up, &d->back.grads.shared_down};
    for (int g = 0; g < GRADS; g++) {
        int64_t inner = g < 3 ? I : S, each = inner * H, row = g % 3 < 2 ? H : inner;
        d->w[g] = upload(d, weight[g] + (g < 3 ? d->e0 * each : 0), grad_count(g, d->local) * 2);
        d->grad[g] = room(d, grad_count(g, d->local) * 4);
        *param[g] = (ferry_matrices){d->w[g], NULL, each, row, FERRY_BF16};
        to[g]->to = (ferry_matrices){d->grad[g], NULL, each, row, f32 ? FERRY_F32 : FERRY_BF16};
    }
    d->back.dx = d->dx;
    d->back.dweights = d->dw;
    d->back.stream = d->stream;
    /* One context is in the caller's memory, where everything is NaN that no forward has written. */
    ferry_plan plan;
    FERRY(ferry_layer_get_plan(d->layer, &plan));
    d->kept = room(d, plan.context_memory_bytes);
    fill(d, d->kept, 0xff, plan.context_memory_bytes);
    for (int b = 0; b < 2; b++) {
        d->x[b] = upload(d, x[b] + (int64_t)d->first * H, (int64_t)d->tokens * H * 2);
        d->dout[b] = upload(d, dout[b] + (int64_t)d->first * H, (int64_t)d->tokens * H * 2);
        d->ids[b] = upload(d, ids[b] + (int64_t)d->first * K, (int64_t)d->tokens * K * 8);
        d->router[b] = upload(d, router[b] + (int64_t)d->first * K, (int64_t)d->tokens * K * 4);
        FERRY(ferry_context_create(d->layer, b == 0 ? d->kept : NULL, &d->context[b]));
        ferry_forward_args_init(&d->forward[b]);
        d->forward[b].num_tokens = d->n;
        d->forward[b].x = d->x[b];
        d->forward[b].ids = d->ids[b];
        d->forward[b].ids_dtype = FERRY_I64;
        d->forward[b].weights = d->router[b];
        d->forward[b].out = d->out;
        d->forward[b].params = d->back.params;
        d->forward[b].context = d->context[b];
        d->forward[b].stream = d->stream;
    }
}

static void close_rank(rank_data *d) {
    for (int b = 0; b < 2; b++) ferry_context_destroy(d->context[b]);
    ferry_layer_destroy(d->layer);
    ferry_comm_destroy(d->comm);
    for (int b = 0; b < 2; b++) {
        drop(d, d->x[b]);
        drop(d, d->dout[b]);
        drop(d, d->ids[b]);
        drop(d, d->router[b]);
    }
    for (int g = 0; g < GRADS; g++) {
        drop(d, d->w[g]);
        drop(d, d->grad[g]);
    }
    drop(d, d->kept);
    drop(d, d->out);
    drop(d, d->dx);
    drop(d, d->dw);
    drop(d, d->n);
    CUDA(cudaStreamDestroy(d->stream));
}

static void poison(rank_data *d, int add) {
    if (!d->cuda) {
        memset(d->dx, 0xff, TOKENS * H * 2);
        memset(d->dw, 0xff, TOKENS * K * 4);
        for (int g = 0; g < GRADS; g++) memset(d->grad[g], add ? 0 : 0xff, (size_t)grad_count(g, d->local) * 4);
        return;
    }
    CUDA(cudaMemsetAsync(d->dx, 0xff, TOKENS * H * 2, d->stream));
    CUDA(cudaMemsetAsync(d->dw, 0xff, TOKENS * K * 4, d->stream));
    for (int g = 0; g < GRADS; g++)
        CUDA(cudaMemsetAsync(d->grad[g], add ? 0 : 0xff, (size_t)grad_count(g, d->local) * 4, d->stream));
}

static void run_backward(rank_data *d, int b, int parts) {
    d->back.context = d->context[b];
    d->back.dout = d->dout[b];
    d->back.parts = parts == 12 ? FERRY_BACKWARD_DATA : parts;
    FERRY(ferry_backward(d->layer, &d->back));
    if (parts != 12) return;
    d->back.parts = FERRY_BACKWARD_WEIGHT;
    FERRY(ferry_backward(d->layer, &d->back));
}

static answer fetch(rank_data *d) {
    answer a = new_answer(d->tokens, d->local);
    CUDA(cudaStreamSynchronize(d->stream));
    FERRY(ferry_comm_error(d->comm));
    copy(d, a.out, d->out, (int64_t)d->tokens * H * 2);
    copy(d, a.dx, d->dx, (int64_t)d->tokens * H * 2);
    copy(d, a.dw, d->dw, (int64_t)d->tokens * K * 4);
    for (int g = 0; g < GRADS; g++) {
        int64_t n = grad_count(g, d->local);
        if (d->f32) {
            copy(d, a.grad[g], d->grad[g], n * 4);
            continue;
        }
        uint16_t *h = malloc((size_t)n * 2);
        copy(d, h, d->grad[g], n * 2);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)h[i] << 16;
            memcpy(&a.grad[g][i], &bits, 4);
        }
        free(h);
    }
    return a;
}

static float rounded(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &bits, 4);
    return v;
}

/* Whether a rank's answer has the bits of its part of all. `f32`: what the rank's gradients are; `all` has F32 ones. */
static int same_bits(const rank_data *d, const answer *mine, const answer *all) {
    int good = 1;
    const char *bad = NULL;
    if (memcmp(mine->out, all->out + (int64_t)d->first * H, (size_t)d->tokens * H * 2)) bad = names[0];
    if (memcmp(mine->dx, all->dx + (int64_t)d->first * H, (size_t)d->tokens * H * 2)) bad = names[1];
    if (memcmp(mine->dw, all->dw + (int64_t)d->first * K, (size_t)d->tokens * K * 4)) bad = names[2];
    for (int g = 0; g < (d->nranks == 1 ? GRADS : 3); g++) {
        const float *ref = all->grad[g] + (g < 3 ? d->e0 * I * H : 0);
        for (int64_t i = 0; i < grad_count(g, d->local) && good; i++) {
            float r = d->f32 ? ref[i] : rounded(ref[i]);
            if (r != mine->grad[g][i]) {
                bad = names[3 + g];
                good = 0;
            }
        }
    }
    if (bad) printf("     rank %d of %d: %s differs\n", d->rank, d->nranks, bad);
    return bad == NULL;
}

static double relative_bf16(const uint16_t *a, const uint16_t *b, int64_t n) {
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t ba = (uint32_t)a[i] << 16, bb = (uint32_t)b[i] << 16;
        float fa, fb;
        memcpy(&fa, &ba, 4);
        memcpy(&fb, &bb, 4);
        num += (fa - fb) * (double)(fa - fb);
        den += fb * (double)fb;
    }
    return sqrt(num / den);
}

static double relative_f32(const float *a, const float *b, int64_t n) {
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        num += (a[i] - b[i]) * (double)(a[i] - b[i]);
        den += b[i] * (double)b[i];
    }
    return sqrt(num / den);
}

static answer one_rank(int cuda, int batch) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b;
    FERRY(ferry_thread_group_create(1, &group));
    FERRY(ferry_thread_group_bootstrap(group, 0, &b));
    open_rank(&d, &b, cuda, 0, -1, 1);
    poison(&d, 0);
    FERRY(ferry_forward(d.layer, &d.forward[batch]));
    run_backward(&d, batch, 3);
    answer a = fetch(&d);
    close_rank(&d);
    ferry_thread_group_destroy(group);
    return a;
}

static void compare_with_cpu(const answer *gpu, int batch) {
    answer cpu = one_rank(0, batch);
    double e[3 + GRADS] = {relative_bf16(gpu->out, cpu.out, TOKENS * H), relative_bf16(gpu->dx, cpu.dx, TOKENS * H),
                           relative_f32(gpu->dw, cpu.dw, TOKENS * K)};
    int good = 1;
    printf("     against the CPU backend:");
    for (int g = 0; g < GRADS; g++) e[3 + g] = relative_f32(gpu->grad[g], cpu.grad[g], grad_count(g, E));
    for (int i = 0; i < 3 + GRADS; i++) {
        printf(" %s %.1e", names[i], e[i]);
        good &= e[i] <= 4e-3;
    }
    printf("\n");
    expect(good, "values of the CPU backend");
    free_answer(&cpu);
}

/* ---- Ranks as threads ---- */
typedef struct job {
    ferry_thread_group *group;
    const answer *all; /* [2] */
    int rank, nranks, good, f32, parts, add;
    int64_t ring, context_rows;
} job;

static void *thread_rank(void *user) {
    job *j = user;
    rank_data d;
    ferry_bootstrap b;
    FERRY(ferry_thread_group_bootstrap(j->group, j->rank, &b));
    open_rank(&d, &b, 1, j->ring, j->context_rows, j->f32);
    ferry_gradient *to[GRADS] = {&d.back.grads.gate,        &d.back.grads.up,        &d.back.grads.down,
                                 &d.back.grads.shared_gate, &d.back.grads.shared_up, &d.back.grads.shared_down};
    for (int g = 0; g < GRADS; g++) to[g]->beta = (float)j->add;
    j->good = 1;
    /* Right after its forward, once more, and with both contexts in flight, the older one first and last. */
    static const int plan[][2] = {{1, 0}, {0, 0}, {1, 1}, {0, 0}, {0, 1}};
    for (int i = 0; i < 5; i++) {
        int batch = plan[i][1];
        if (plan[i][0]) FERRY(ferry_forward(d.layer, &d.forward[batch]));
        poison(&d, j->add);
        run_backward(&d, batch, j->parts);
        answer a = fetch(&d);
        /* `out` is that of the last forward. */
        memcpy(a.out, j->all[batch].out + (int64_t)d.first * H, plan[i][0] ? 0 : (size_t)d.tokens * H * 2);
        j->good &= same_bits(&d, &a, &j->all[batch]);
        free_answer(&a);
    }
    ferry_barrier(d.comm);
    close_rank(&d);
    return NULL;
}

static void check_threads(const answer *all, int nranks, int64_t ring, int64_t context_rows, int f32, int parts,
                          int add) {
    job j[MOST];
    pthread_t thread[MOST];
    ferry_thread_group *group;
    FERRY(ferry_thread_group_create(nranks, &group));
    for (int r = 0; r < nranks; r++) {
        j[r] = (job){group, all, r, nranks, 0, f32, parts, add, ring, context_rows};
        pthread_create(&thread[r], NULL, thread_rank, &j[r]);
    }
    int good = 1;
    for (int r = 0; r < nranks; r++) {
        pthread_join(thread[r], NULL);
        good &= j[r].good;
    }
    ferry_thread_group_destroy(group);
    char what[160];
    snprintf(what, sizeof what, "%d ranks, ring %lld, context rows %lld, %s%s, parts %d: the bits of one rank", nranks,
             (long long)ring, (long long)context_rows, f32 ? "F32" : "BF16", add ? " added to zeros" : "", parts);
    expect(good, what);
}

/* ---- A captured graph of a forward and its backward ---- */
static void check_graph(const answer *all) {
    rank_data d;
    ferry_thread_group *group;
    ferry_bootstrap b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    FERRY(ferry_thread_group_create(1, &group));
    FERRY(ferry_thread_group_bootstrap(group, 0, &b));
    open_rank(&d, &b, 1, 512, 256, 1);
    CUDA(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeThreadLocal));
    FERRY(ferry_forward(d.layer, &d.forward[0]));
    run_backward(&d, 0, 3);
    CUDA(cudaStreamEndCapture(d.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    int good = 1;
    for (int i = 0; i < 20 && good; i++) {
        int batch = i % 2;
        copy(&d, d.x[0], x[batch], TOKENS * H * 2);
        copy(&d, d.dout[0], dout[batch], TOKENS * H * 2);
        copy(&d, d.ids[0], ids[batch], TOKENS * K * 8);
        copy(&d, d.router[0], router[batch], TOKENS * K * 4);
        poison(&d, 0);
        CUDA(cudaGraphLaunch(exec, d.stream));
        answer a = fetch(&d);
        good = same_bits(&d, &a, &all[batch]);
        free_answer(&a);
    }
    expect(good, "a captured forward and backward, 20 replays with other tokens");
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    close_rank(&d);
    ferry_thread_group_destroy(group);
}

/* ---- Cases with calls in flight; every rank runs one of these ---- */
typedef int case_rank(rank_data *d, const answer *all);

typedef struct case_job {
    ferry_thread_group *group;
    const answer *all;
    case_rank *run;
    int rank, good;
    int64_t ring, context_rows;
} case_job;

static void *case_thread(void *user) {
    case_job *j = user;
    rank_data d;
    ferry_bootstrap b;
    FERRY(ferry_thread_group_bootstrap(j->group, j->rank, &b));
    open_rank(&d, &b, 1, j->ring, j->context_rows, 1);
    j->good = j->run(&d, j->all);
    CUDA(cudaStreamSynchronize(d.stream));
    FERRY(ferry_barrier(d.comm));
    close_rank(&d);
    return NULL;
}

static void check_case(case_rank *run, const answer *all, int nranks, int64_t ring, int64_t context_rows,
                       const char *what) {
    case_job j[MOST];
    pthread_t thread[MOST];
    ferry_thread_group *group;
    char text[160];
    int good = 1;
    FERRY(ferry_thread_group_create(nranks, &group));
    for (int r = 0; r < nranks; r++) {
        j[r] = (case_job){group, all, run, r, 0, ring, context_rows};
        pthread_create(&thread[r], NULL, case_thread, &j[r]);
    }
    for (int r = 0; r < nranks; r++) {
        pthread_join(thread[r], NULL);
        good &= j[r].good;
    }
    ferry_thread_group_destroy(group);
    snprintf(text, sizeof text, "%d ranks: %s", nranks, what);
    expect(good, text);
}

static ferry_gradient *gradient_of(rank_data *d, int g) {
    ferry_gradient *to[GRADS] = {&d->back.grads.gate,        &d->back.grads.up,        &d->back.grads.down,
                                 &d->back.grads.shared_gate, &d->back.grads.shared_up, &d->back.grads.shared_down};
    return to[g];
}

/* The gradients in `grad` against those of all; nothing else. */
static int same_gradients(rank_data *d, void *const *grad, const answer *all) {
    int good = 1;
    for (int g = 0; g < 3; g++) {
        int64_t n = grad_count(g, d->local);
        float *got = malloc((size_t)n * 4 + 1);
        copy(d, got, grad[g], n * 4);
        good &= !memcmp(got, all->grad[g] + d->e0 * I * H, (size_t)n * 4);
        free(got);
    }
    return good;
}

/* Another stream copies each expert's gradients as soon as its word says so. `wanted`: bits of gate, up, down. */
static int ready_with(rank_data *d, const answer *all, int wanted, int *early) {
    typedef CUresult wait_value(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    wait_value *wait;
    enum cudaDriverEntryPointQueryResult found;
    CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&wait, 12000, cudaEnableDefault, &found));
    cudaStream_t beside;
    cudaEvent_t end, copied[E];
    uint32_t *words, seen[E];
    float *host[3];
    int64_t each = (int64_t)I * H;
    int good = 1;
    CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaMalloc((void **)&words, sizeof seen));
    CUDA(cudaMemsetAsync(words, 0, sizeof seen, d->stream));
    for (int g = 0; g < 3; g++) {
        CUDA(cudaHostAlloc((void **)&host[g], (size_t)(d->local * each + 1) * 4, cudaHostAllocPortable));
        gradient_of(d, g)->to.base = wanted >> g & 1 ? d->grad[g] : NULL;
    }
    poison(d, 0);
    CUDA(cudaStreamSynchronize(d->stream));
    FERRY(ferry_barrier(d->comm));
    /* The waits come first, so that it is the call's time that decides. */
    for (int64_t e = 0; e < d->local; e++) {
        CUDA(cudaEventCreate(&copied[e]));
        good &= wait(beside, (CUdeviceptr)(words + e), 7, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS;
        for (int g = 0; g < 3; g++)
            if (wanted >> g & 1)
                CUDA(cudaMemcpyAsync(host[g] + e * each, (float *)d->grad[g] + e * each, (size_t)each * 4,
                                     cudaMemcpyDeviceToHost, beside));
        CUDA(cudaEventRecord(copied[e], beside));
    }
    d->back.ready = words;
    d->back.ready_value = 7;
    run_backward(d, 0, 3);
    CUDA(cudaEventRecord(end, d->stream));
    CUDA(cudaStreamSynchronize(beside));
    CUDA(cudaStreamSynchronize(d->stream));
    CUDA(cudaMemcpy(seen, words, sizeof seen, cudaMemcpyDeviceToHost));
    for (int64_t e = 0; e < E; e++) good &= seen[e] == (e < d->local ? 7u : 0u);
    for (int g = 0; g < 3; g++)
        if (wanted >> g & 1) good &= !memcmp(host[g], all->grad[g] + d->e0 * each, (size_t)(d->local * each) * 4);
    for (int64_t e = 0; e < d->local; e++) {
        float ms;
        CUDA(cudaEventElapsedTime(&ms, copied[e], end));
        *early += ms > 0;
        CUDA(cudaEventDestroy(copied[e]));
    }
    for (int g = 0; g < 3; g++) {
        gradient_of(d, g)->to.base = d->grad[g];
        CUDA(cudaFreeHost(host[g]));
    }
    d->back.ready = NULL;
    CUDA(cudaFree(words));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaStreamDestroy(beside));
    return good;
}

static int ready_rank(rank_data *d, const answer *all) {
    int early = 0, good;
    FERRY(ferry_forward(d->layer, &d->forward[0]));
    good = 1;
    for (int i = 0; i < 5; i++) good &= ready_with(d, &all[0], 7, &early);
    printf("     rank %d: gradients of %d of %lld experts were copied before their call's end\n", d->rank, early,
           5 * (long long)d->local);
    good &= early > 0;
    good &= ready_with(d, &all[0], 4, &early) && ready_with(d, &all[0], 0, &early);
    return good;
}

/* Weight parts of two forwards, nothing waiting between them: what a fast rank stages for the second one must not reach
 * a slow rank that pulls for the first. */
static int uneven_rank(rank_data *d, const answer *all) {
    void *second[GRADS];
    int good = 1;
    for (int g = 0; g < GRADS; g++) second[g] = room(d, grad_count(g, d->local) * 4);
    for (int b = 0; b < 2; b++) FERRY(ferry_forward(d->layer, &d->forward[b]));
    for (int i = 0; i < 10; i++) {
        for (int b = 0; b < 2; b++) {
            for (int g = 0; g < GRADS; g++) {
                void *to = b ? second[g] : d->grad[g];
                CUDA(cudaMemsetAsync(to, 0xff, (size_t)grad_count(g, d->local) * 4, d->stream));
                gradient_of(d, g)->to.base = to;
            }
            run_backward(d, b, FERRY_BACKWARD_WEIGHT);
        }
        CUDA(cudaStreamSynchronize(d->stream));
        FERRY(ferry_comm_error(d->comm));
        good &= same_gradients(d, d->grad, &all[0]) && same_gradients(d, second, &all[1]);
    }
    for (int g = 0; g < GRADS; g++) drop(d, second[g]);
    return good;
}

static int backward_is(rank_data *d, int b, const answer *all) {
    poison(d, 0);
    run_backward(d, b, 3);
    answer a = fetch(d);
    memcpy(a.out, all[b].out + (int64_t)d->first * H, (size_t)d->tokens * H * 2); /* of another forward, or none */
    int good = same_bits(d, &a, &all[b]);
    free_answer(&a);
    return good;
}

/* Forwards that do nothing leave a context what it was. */
static int refused_rank(rank_data *d, const answer *all) {
    int32_t many = TOKENS + 1;
    ferry_report report = {.size = sizeof report};
    ferry_forward_args crooked = d->forward[0];
    FERRY(ferry_forward(d->layer, &d->forward[0]));
    CUDA(cudaStreamSynchronize(d->stream));
    if (d->rank == 0) copy(d, d->n, &many, 4);
    for (int b = 0; b < 2; b++) { /* into the filled context, and into one that was never filled */
        FERRY(ferry_forward(d->layer, &d->forward[b]));
        CUDA(cudaStreamSynchronize(d->stream));
        if (ferry_layer_poll(d->layer, &report) != FERRY_E_TOO_MANY_TOKENS) return 0;
    }
    copy(d, d->n, &d->tokens, 4);
    int good = backward_is(d, 0, all);
    poison(d, 0);
    run_backward(d, 1, 3);
    CUDA(cudaStreamSynchronize(d->stream));
    for (int g = 0; g < GRADS; g++) {
        int64_t n = grad_count(g, d->local);
        float *got = malloc((size_t)n * 4 + 1);
        copy(d, got, d->grad[g], n * 4);
        for (int64_t i = 0; i < n; i++) good &= got[i] == 0;
        free(got);
    }
    crooked.x = (const char *)crooked.x + 2;
    good &= ferry_forward(d->layer, &crooked) == FERRY_E_UNSUPPORTED;
    return good && backward_is(d, 0, all);
}

/* A context goes while its calls run; its memory then serves the next one. */
static int destroyed_rank(rank_data *d, const answer *all) {
    int good = 1;
    for (int i = 0; i < 5; i++) {
        poison(d, 0);
        FERRY(ferry_forward(d->layer, &d->forward[0]));
        run_backward(d, 0, 3);
        ferry_context_destroy(d->context[0]);
        FERRY(ferry_context_create(d->layer, NULL, &d->context[0]));
        d->forward[0].context = d->context[0];
        answer a = fetch(d);
        good &= same_bits(d, &a, &all[0]);
        free_answer(&a);
    }
    /* One that no call uses, while a call waits for a late peer: that call goes on. */
    ferry_context *idle;
    struct timespec t[2];
    FERRY(ferry_context_create(d->layer, NULL, &idle));
    FERRY(ferry_barrier(d->comm));
    if (d->rank == 1) usleep(1500000);
    FERRY(ferry_forward(d->layer, &d->forward[1]));
    clock_gettime(CLOCK_MONOTONIC, &t[0]);
    ferry_context_destroy(idle);
    clock_gettime(CLOCK_MONOTONIC, &t[1]);
    double took = (double)(t[1].tv_sec - t[0].tv_sec) + 1e-9 * (double)(t[1].tv_nsec - t[0].tv_nsec);
    if (took > 0.5) printf("     destroying a context took %.3f s\n", took);
    good &= took < 0.5;
    poison(d, 0);
    run_backward(d, 1, 3);
    answer a = fetch(d);
    good &= same_bits(d, &a, &all[1]);
    free_answer(&a);
    return good;
}

int main(void) {
    CUDA(cudaGetDeviceCount(&devices));
    make_problem();
    answer all[2];
    for (int clamp = 0; clamp < 2; clamp++) {
        limit = clamp ? 0.7f : 0;
        for (int b = 0; b < 2; b++) {
            all[b] = one_rank(1, b);
            compare_with_cpu(&all[b], b);
        }
        check_threads(all, 1, 0, -1, 1, 3, 0);
        check_threads(all, 1, 128, 0, 1, 3, 0);
        check_threads(all, 1, 192, 320, 0, 12, 0);
        check_threads(all, 2, 0, -1, 1, 3, 0);
        check_threads(all, 2, 256, 192, 0, 3, 1);
        if (clamp) break;
        check_threads(all, 1, 0, 0, 1, 3, 1);
        check_threads(all, 3, 0, -1, 0, 12, 0);
        check_threads(all, 3, 128, 64, 1, 3, 0);
        check_threads(all, 4, 0, 0, 1, 3, 0);
        check_threads(all, 8, 0, -1, 1, 3, 0);
        check_graph(all);
        for (int ranks = 1; ranks <= 2; ranks++) {
            check_case(ready_rank, all, ranks, 128, -1, "words say when an expert's gradients are there");
            check_case(refused_rank, all, ranks, 0, -1, "refused forwards leave their contexts");
            check_case(destroyed_rank, all, ranks, 192, 320, "contexts destroyed with calls in flight");
        }
        compute_workers[1] = 1;
        check_case(uneven_rank, all, 2, 0, 0, "weight parts beside a slow rank");
        compute_workers[1] = 0;
        for (int b = 0; b < 2; b++) free_answer(&all[b]);
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
