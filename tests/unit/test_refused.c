/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that end early and what they leave: a forward of too many tokens leaves the context that it was given as it
 * was; symmetric memory that a rank has freed is an error and no crash; an observer's word counts in waits too.
 */
#include "ferry/ferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, TOKENS = 70, HIDDEN = 8, WIDTH = 4, EXPERTS = 4, SLOTS = 2 };

/* One rank: its handles, its tensors and what its calls gave. Written by its own thread, read after it has ended. */
typedef struct rank_state {
    ferry_thread_group *group;
    int rank;
    ferry_observer observer;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    int32_t tokens, ids[TOKENS * SLOTS];
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], dout[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
    uint16_t weight[EXPERTS * WIDTH * HIDDEN];
    float weights[TOKENS * SLOTS], dweights[TOKENS * SLOTS];
    ferry_forward_args forward;
    ferry_backward_args backward;
    ferry_status status, context_status;
    char sentence[512];
} rank_state;

static ferry_matrices matrices(uint16_t *base, int64_t rows, int64_t columns) {
    return (ferry_matrices){.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = FERRY_BF16};
}

/* Values that are multiples of 1/8 and not all alike. */
static void fill(uint16_t *to, int64_t count, int salt) {
    static const uint16_t eighths[] = {0x3e00, 0x3e80, 0xbec0, 0x3f00, 0xbf20, 0x3f40, 0xbf60};
    for (int64_t i = 0; i < count; i++) to[i] = eighths[(size_t)(i * i + i / 7 + salt) % 7];
}

static void open_rank(rank_state *s) {
    ferry_comm_config comm_config;
    ferry_layer_config config;
    ferry_comm_config_init(&comm_config);
    ferry_layer_config_init(&config);
    assert_int_equal(ferry_thread_group_bootstrap(s->group, s->rank, &comm_config.bootstrap), FERRY_OK);
    comm_config.comm_workers = comm_config.compute_workers = 1;
    comm_config.enter_timeout_s = 20;
    comm_config.progress_timeout_s = 2;
    comm_config.observer = s->observer;
    config.hidden = HIDDEN;
    config.intermediate = WIDTH;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = TOKENS;
    config.ring_rows = 64;
    config.context_rows = 64;
    assert_int_equal(ferry_comm_create(&comm_config, &s->comm), FERRY_OK);
    assert_int_equal(ferry_layer_create(s->comm, &config, &s->layer), FERRY_OK);
    assert_int_equal(ferry_context_create(s->layer, NULL, &s->context), FERRY_OK);

    s->tokens = TOKENS;
    fill(s->x, TOKENS * HIDDEN, s->rank);
    fill(s->dout, TOKENS * HIDDEN, s->rank + 3);
    fill(s->weight, EXPERTS * WIDTH * HIDDEN, 1);
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        s->ids[i] = (i * 5 + i / 3 + s->rank) % EXPERTS;
        s->weights[i] = (float)(i % 5 - 2) / 4;
    }
    ferry_forward_args_init(&s->forward);
    s->forward.num_tokens = &s->tokens;
    s->forward.x = s->x;
    s->forward.ids = s->ids;
    s->forward.weights = s->weights;
    s->forward.params.gate = s->forward.params.up = matrices(s->weight, WIDTH, HIDDEN);
    s->forward.params.down = matrices(s->weight, HIDDEN, WIDTH);
    s->forward.out = s->out;
    s->forward.context = s->context;
    ferry_backward_args_init(&s->backward);
    s->backward.context = s->context;
    s->backward.dout = s->dout;
    s->backward.params = s->forward.params;
    s->backward.dx = s->dx;
    s->backward.dweights = s->dweights;
}

static void close_rank(rank_state *s) {
    ferry_context_destroy(s->context);
    ferry_layer_destroy(s->layer);
    ferry_comm_destroy(s->comm);
}

/* Keeps what the rank's last call gave. */
static void note(rank_state *s, ferry_status status) {
    s->status = status;
    strncpy(s->sentence, status ? ferry_last_error() : "", sizeof s->sentence - 1);
}

static void run(rank_state states[RANKS], ferry_observer observer, void *(*body)(void *)) {
    pthread_t threads[RANKS];
    ferry_thread_group *group;
    assert_int_equal(ferry_thread_group_create(RANKS, &group), FERRY_OK);
    for (int r = 0; r < RANKS; r++) {
        memset(&states[r], 0, sizeof states[r]);
        states[r].group = group;
        states[r].rank = r;
        states[r].observer = observer;
        assert_int_equal(pthread_create(&threads[r], NULL, body, &states[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    ferry_thread_group_destroy(group);
}

/* ---- Too many tokens ---- */

static void *plain(void *argument) {
    rank_state *s = argument;
    open_rank(s);
    s->status = ferry_forward(s->layer, &s->forward);
    if (!s->status) note(s, ferry_backward(s->layer, &s->backward));
    close_rank(s);
    return NULL;
}

/* Between forward and backward, rank 1 passes too many tokens; the other inputs of that call are others, too. */
static void *refused_between(void *argument) {
    rank_state *s = argument;
    open_rank(s);
    s->status = ferry_forward(s->layer, &s->forward);
    if (!s->status) {
        s->tokens = s->rank == 1 ? TOKENS + 1 : TOKENS - 3;
        memset(s->ids, 0, sizeof s->ids);
        memset(s->x, 0, sizeof s->x);
        memset(s->weights, 0, sizeof s->weights);
        s->context_status = ferry_forward(s->layer, &s->forward);
        note(s, ferry_backward(s->layer, &s->backward));
    }
    close_rank(s);
    return NULL;
}

static void test_refused_call_keeps_the_context(void **state) {
    static rank_state expected[RANKS], got[RANKS];
    (void)state;
    run(expected, (ferry_observer){NULL, NULL}, plain);
    run(got, (ferry_observer){NULL, NULL}, refused_between);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(expected[r].status, FERRY_OK);
        assert_int_equal(got[r].context_status, FERRY_E_TOO_MANY_TOKENS);
        if (got[r].status) fail_msg("rank %d: %s", r, got[r].sentence);
        assert_memory_equal(got[r].dx, expected[r].dx, sizeof got[r].dx);
        assert_memory_equal(got[r].dweights, expected[r].dweights, sizeof got[r].dweights);
    }
}

/* ---- Freed symmetric memory ---- */

/* Rank 0 passes a tensor in symmetric memory whose part of rank 1 is gone. */
static void free_on_one(rank_state *s, int backward) {
    void *memory;
    open_rank(s);
    assert_int_equal(ferry_sym_alloc(s->comm, sizeof s->x, &memory), FERRY_OK);
    memcpy(memory, backward ? s->dout : s->x, sizeof s->x);
    if (s->rank == 1) ferry_sym_free(s->comm, memory);
    if (s->rank == 0 && backward) s->backward.dout = memory;
    if (s->rank == 0 && !backward) s->forward.x = memory;
    ferry_status status = ferry_forward(s->layer, &s->forward);
    if (!status && backward) status = ferry_backward(s->layer, &s->backward);
    note(s, status);
    if (s->rank == 0) ferry_sym_free(s->comm, memory);
    close_rank(s);
}

static void *free_x(void *argument) {
    free_on_one(argument, 0);
    return NULL;
}

static void *free_dout(void *argument) {
    free_on_one(argument, 1);
    return NULL;
}

static void test_freed_symmetric_memory(void **state) {
    static rank_state states[RANKS];
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        run(states, (ferry_observer){NULL, NULL}, backward ? free_dout : free_x);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(states[r].status, FERRY_E_STATE);
            assert_non_null(strstr(states[r].sentence, backward ? "dout" : "x lies"));
            assert_non_null(strstr(states[r].sentence, "symmetric memory that rank 1 has freed"));
        }
    }
}

/* ---- An observer that says leave when a wait begins ---- */

static _Atomic int told;

/* Pulls are late, so that products do wait. */
static int leave_at_wait(void *user, const ferry_event *event) {
    (void)user;
    if (event->phase == FERRY_PHASE_PULL && event->begin) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    if (event->rank != 1 || !event->begin || !event->wait || event->phase != FERRY_PHASE_COMPUTE) return 0;
    atomic_store(&told, 1);
    return 1;
}

static void test_observer_in_a_wait(void **state) {
    static rank_state states[RANKS];
    (void)state;
    run(states, (ferry_observer){leave_at_wait, NULL}, plain);
    assert_int_equal(atomic_load(&told), 1);
    for (int r = 0; r < RANKS; r++) assert_int_equal(states[r].status, FERRY_E_TIMEOUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_call_keeps_the_context),
        cmocka_unit_test(test_freed_symmetric_memory),
        cmocka_unit_test(test_observer_in_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
