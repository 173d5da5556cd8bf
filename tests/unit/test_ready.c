/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a ready word stands for: a thread beside the call copies an expert's gradients as soon as it sees the word, and
 * finds what is there at the end. Over routings (even, one expert, none), rings that cut experts, parts, the gradients
 * that are wanted, sums on top of old ones, and contexts with and without rows.
 */
#include "layer_ranks.h"

#include <sched.h>
#include <string.h>

static uint64_t state = 3407;
static int64_t random_below(int64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

enum { RANKS = 2, TOKENS = 150, SLOTS = 2, EXPERTS = 5, HIDDEN = 72, INNER = 40, LOCAL = 3, KINDS = 3 };
enum { MATRIX = HIDDEN * INNER };

typedef struct trial {
    int64_t ring, context_rows;
    int only;   /* every slot's expert; -1: any, -2: none */
    int wanted; /* bits: gate, up, down */
    int parts;
    float beta;
} trial;

typedef struct job {
    const trial *t;
    int64_t local;
    int32_t ids[TOKENS * SLOTS];
    uint32_t ready[LOCAL];
    int stop; /* the watcher is not needed any more */
    float gradient[KINDS][LOCAL * MATRIX], seen[KINDS][LOCAL * MATRIX];
    int copied;
} job;

static job jobs[RANKS];

/* Copies each expert's gradients once its word is there. */
static void *watch(void *argument) {
    job *j = argument;
    int done[LOCAL] = {0};
    while (j->copied < j->local && !__atomic_load_n(&j->stop, __ATOMIC_ACQUIRE)) {
        for (int e = 0; e < j->local; e++) {
            if (done[e] || __atomic_load_n(&j->ready[e], __ATOMIC_ACQUIRE) != 9) continue;
            for (int k = 0; k < KINDS; k++)
                if (j->t->wanted >> k & 1)
                    memcpy(&j->seen[k][e * MATRIX], &j->gradient[k][e * MATRIX], MATRIX * sizeof(float));
            done[e] = 1;
            j->copied++;
        }
        sched_yield();
    }
    return NULL;
}

static void fill(uint16_t *values, int count, uint64_t seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (uint16_t)(0x3d00 + (seed >> 40) % 0x200 + (seed >> 60 & 1) * 0x8000);
    }
}

static ferry_status work(void *argument, int rank, ferry_layer *layer, ferry_context *context) {
    job *j = argument;
    static uint16_t up[RANKS][LOCAL * MATRIX], down[RANKS][LOCAL * MATRIX];
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    float router[TOKENS * SLOTS];
    int32_t tokens = TOKENS - 20 * rank;
    ferry_forward_args f;
    ferry_backward_args b;
    j->local = ferry_layer_local_experts(layer, rank);
    fill(x, TOKENS * HIDDEN, 5 + (uint64_t)rank);
    fill(up[rank], LOCAL * MATRIX, 15 + (uint64_t)rank);
    fill(down[rank], LOCAL * MATRIX, 25 + (uint64_t)rank);
    for (int i = 0; i < TOKENS * SLOTS; i++) router[i] = 0.25f + (float)(i % 7);
    ferry_forward_args_init(&f);
    f.num_tokens = &tokens;
    f.x = x;
    f.ids = j->ids;
    f.weights = router;
    f.params.gate = f.params.up = dense_matrices(up[rank], INNER, HIDDEN, FERRY_BF16);
    f.params.down = dense_matrices(down[rank], HIDDEN, INNER, FERRY_BF16);
    f.out = out;
    f.context = context;
    ferry_status status = ferry_forward(layer, &f);
    if (status) return status;
    ferry_backward_args_init(&b);
    b.context = context;
    b.parts = j->t->parts;
    b.dout = x;
    b.params = f.params;
    b.dx = out;
    ferry_gradient *to[KINDS] = {&b.grads.gate, &b.grads.up, &b.grads.down};
    for (int k = 0; k < KINDS; k++) {
        if (!(j->t->wanted >> k & 1)) continue;
        to[k]->to = dense_matrices(j->gradient[k], k < 2 ? INNER : HIDDEN, k < 2 ? HIDDEN : INNER, FERRY_F32);
        to[k]->beta = j->t->beta;
    }
    b.ready = j->ready;
    b.ready_value = 9;
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch, j)) return FERRY_E_SYSTEM;
    status = ferry_backward(layer, &b);
    if (status) __atomic_store_n(&j->stop, 1, __ATOMIC_RELEASE);
    pthread_join(watcher, NULL);
    return status;
}

static void run(const trial *t) {
    layer_rank ranks[RANKS];
    for (int r = 0; r < RANKS; r++) {
        job *j = &jobs[r];
        memset(j, 0, sizeof *j);
        j->t = t;
        for (int i = 0; i < TOKENS * SLOTS; i++)
            j->ids[i] = t->only == -2 ? -1 : t->only >= 0 ? t->only : (int32_t)random_below(EXPERTS + 1) - 1;
        memset(j->ready, 0xee, sizeof j->ready);
        for (int k = 0; k < KINDS; k++)
            for (int i = 0; i < LOCAL * MATRIX; i++) j->gradient[k][i] = t->beta > 0 ? 0.5f : __builtin_nanf("");
        memset(j->seen, 0xee, sizeof j->seen);
        layer_rank_init(&ranks[r], work, j);
        ranks[r].comm.comm_workers = 1 + r;
        ranks[r].comm.compute_workers = 3;
        layer_rank_extents(&ranks[r], HIDDEN, INNER, EXPERTS, SLOTS, TOKENS);
        ranks[r].layer.ring_rows = t->ring;
        ranks[r].layer.context_rows = t->context_rows;
    }
    run_layer_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++) {
        job *j = &jobs[r];
        size_t bytes = (size_t)j->local * MATRIX * sizeof(float);
        assert_int_equal(j->copied, j->local);
        for (int k = 0; k < KINDS; k++)
            if (t->wanted >> k & 1) assert_memory_equal(j->seen[k], j->gradient[k], bytes);
    }
}

static void test_words(void **unused) {
    (void)unused;
    for (int i = 0; i < 60; i++) {
        const trial t = {.ring = i % 3 * 64,
                         .context_rows = random_below(2) - 1,
                         .only = i % 4 == 3    ? (int)random_below(EXPERTS)
                                 : i % 10 == 0 ? -2
                                               : -1,
                         .wanted = i % 5 == 4 ? (int)random_below(8) : 7,
                         .parts = i % 2 ? FERRY_BACKWARD_ALL : FERRY_BACKWARD_WEIGHT,
                         .beta = (float)random_below(2)};
        run(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
