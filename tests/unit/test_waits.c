/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every wait of the table of flags in docs/design.md: the writer is made late by an observer that sleeps when a chosen
 * unit begins, and the results must have the bits of an undisturbed run. A wait that is missing, or waits for too
 * little, then reads what is not there yet or overwrites what is still needed, on any machine.
 */
#include "cli/check/session.h"

#include "comm/control.h"
#include "cpu/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

/* Which units are late: of one kind, on one rank, in every STRIDE-th step. */
typedef struct lateness {
    const char *flag; /* what the late unit writes, and who waits for it */
    const char *what; /* of the unit, as the observer sees it */
    int backward, shared, rank;
    double seconds;
    check_save save;
    int64_t ring;
    int phase_of_steps; /* filled in: steps s with s % STRIDE equal to this one */
    int parts_first;    /* the backward in parts; x and dout in symmetric memory */
} lateness;

enum { STRIDE = 4, WORKERS = 3 };

static int observe(const lateness *late, const ferry_event *event) {
    if (!event->begin || event->wait || event->backward != late->backward || event->rank != late->rank) return 0;
    if (strcmp(event->what, late->what) != 0) return 0;
    if (late->shared ? event->step >= 0 : event->step >= 0 && event->step % STRIDE != late->phase_of_steps) return 0;
    check_sleep(late->seconds);
    return 0;
}

static int on_event(void *user, const ferry_event *event) { return observe(user, event); }

static void use_observer(void *user, int rank, ferry_comm_config *config) {
    (void)rank;
    config->observer = (ferry_observer){on_event, user};
}

/* About twelve steps on each of two ranks; every expert is cut by a macrobatch end; tokens with two rows on a rank. */
static const check_problem problem = {
    .seed = 77, .tokens = 380, .hidden = 20, .intermediate = 12, .shared = 8, .experts = 6, .slots = 3, .limit = 1.5f};

static check_way way_of(lateness *late) {
    return (check_way){.ranks = 2,
                       .comm_workers = WORKERS,
                       .compute_workers = WORKERS,
                       .ring = late->ring,
                       .minibatch = 64,
                       .save = late->save,
                       .parts_first = late->parts_first,
                       .symmetric = late->parts_first != 0,
                       .tune = use_observer,
                       .tune_user = late};
}

static const lateness cases[] = {
    {"published: schedule", "schedule", 0, 0, 1, 0.05, CHECK_SAVED, 192, 0, 0},
    {"published: schedule of a backward", "schedule", 1, 0, 1, 0.05, CHECK_SAVED, 192, 0, 0},
    {"published.done: the caller, of dout", "reverse-combine", 1, 0, 1, 0.05, CHECK_SAVED, 192, 0, FERRY_BACKWARD_DATA},
    {"published.done: the next call, of staged x", "reverse-combine", 1, 0, 1, 0.05, CHECK_RECOMPUTE, 192, 0,
     FERRY_BACKWARD_WEIGHT},
    {"arrived: sum", "combine", 0, 0, 1, 0.05, CHECK_SAVED, 192, 0, 0},
    {"arrived: sum of dx", "reverse-dispatch", 1, 0, 1, 0.05, CHECK_SAVED, 192, 0, 0},
    {"pulled: gate+up; leaders; pulls of the next macrobatch", "dispatch", 0, 0, 0, 0.04, CHECK_RECOMPUTE, 192, 0, 0},
    {"pulled into the context", "dispatch", 0, 0, 0, 0.04, CHECK_SAVED, 192, 0, 0},
    {"pulled: SwiGLU gradient, gate+up again; leaders", "reverse-combine", 1, 0, 0, 0.04, CHECK_RECOMPUTE, 192, 0, 0},
    {"pulled: SwiGLU gradient of saved rows", "reverse-combine", 1, 0, 0, 0.04, CHECK_SAVED, 192, 0, 0},
    {"remade: SwiGLU gradient", "gate+up again", 1, 0, 0, 0.04, CHECK_RECOMPUTE, 192, 0, 0},
    {"made: down; pull into the ring's x rows", "gate+up", 0, 0, 0, 0.04, CHECK_RECOMPUTE, 192, 0, 0},
    {"made: the same in a ring of one step", "gate+up", 0, 0, 0, 0.04, CHECK_RECOMPUTE, 64, 0, 0},
    {"made: dx, weight gradient; pull into the ring's dout rows", "SwiGLU gradient", 1, 0, 0, 0.04, CHECK_RECOMPUTE,
     192, 0, 0},
    {"finished: push; gate+up into the ring's h rows", "down", 0, 0, 0, 0.04, CHECK_SAVED, 192, 0, 0},
    {"finished: the same in a ring of one step", "down", 0, 0, 0, 0.04, CHECK_SAVED, 64, 0, 0},
    {"finished: push; SwiGLU gradient into the ring's gradient rows", "dx", 1, 0, 0, 0.04, CHECK_SAVED, 192, 0, 0},
    {"finished: the same in a ring of one step", "dx", 1, 0, 0, 0.04, CHECK_RECOMPUTE, 64, 0, 0},
    {"pushed: down into the ring's result rows", "combine", 0, 0, 0, 0.04, CHECK_SAVED, 192, 0, 0},
    {"pushed: dx into the ring's result rows, dweight partials", "reverse-dispatch", 1, 0, 0, 0.04, CHECK_SAVED, 192, 0,
     0},
    {"done: the chain's next segment; pull into rows that it reads", "weight gradient", 1, 0, 0, 0.04, CHECK_RECOMPUTE,
     192, 0, 0},
    {"done: the same in a ring of one step", "weight gradient", 1, 0, 0, 0.04, CHECK_SAVED, 64, 0, 0},
    {"shared_made: shared down", "gate+up", 0, 1, 0, 0.05, CHECK_SAVED, 192, 0, 0},
    {"shared_remade: shared gradient", "gate+up again", 1, 1, 0, 0.05, CHECK_RECOMPUTE, 192, 0, 0},
    {"shared_made: shared dx and weight gradient", "SwiGLU gradient", 1, 1, 0, 0.3, CHECK_SAVED, 192, 0, 0},
    {"shared_finished: sum", "down", 0, 1, 0, 0.3, CHECK_SAVED, 192, 0, 0},
    {"shared_finished: sum of dx", "dx", 1, 1, 0, 0.3, CHECK_SAVED, 192, 0, 0},
};

static void run_late(const check_batch *batch, const check_result *expected, lateness late) {
    static const check_options options = {.backend = FERRY_CPU};
    check_verdict verdict = {0};
    check_case c = {&verdict, &options, NULL};
    check_way way = way_of(&late);
    check_result *got = check_run(&c, batch, &way);
    if (got) check_same_bits(&c, expected, got, late.flag);
    check_result_free(got);
    if (check_failed(&c))
        fail_msg("%s late in steps %d mod %d: %s", late.flag, late.phase_of_steps, STRIDE, verdict.text);
}

static void test_late_writers(void **state) {
    static const check_options options = {.backend = FERRY_CPU};
    check_verdict verdict = {0};
    check_case c = {&verdict, &options, NULL};
    check_way plain = {.ranks = 2, .comm_workers = 1, .compute_workers = 1, .ring_part = 1};
    check_batch batch;
    (void)state;
    assert_true(check_batch_make(&problem, &batch));
    check_result *expected = check_run(&c, &batch, &plain);
    if (!expected) fail_msg("the undisturbed run: %s", verdict.text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int whole = cases[i].shared || strcmp(cases[i].what, "schedule") == 0;
        for (int phase = 0; phase < (whole ? 1 : STRIDE); phase++) {
            lateness late = cases[i];
            late.phase_of_steps = phase;
            run_late(&batch, expected, late);
        }
    }
    check_result_free(expected);
    check_batch_free(&batch);
}

/* ---- What only internals show ---- */

/* The record of a rank in a layer's symmetric memory that calls of this parity use. */
static fy_published *record_of(const ferry_layer *layer, int rank, int parity) {
    const fy_cpu_layer *state = layer->state;
    return (fy_published *)(state->symmetric->base[rank] + state->layout.symmetric.published) + parity;
}

/* A rank may be a call ahead of another that still reads its record and tables: a call leaves those of the call before
 * as they are. */
static void call_twice(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
        const fy_cpu_layer *layer = r.layer->state;
        int64_t slots = shard.tokens * job->batch->problem.slots;
        const int32_t *ids = (const int32_t *)(layer->symmetric->base[rank] + layer->layout.symmetric.ids);
        int64_t half = r.layer->shape.max_tokens * r.layer->shape.slots;
        check_status(job->c, rank, ferry_forward(r.layer, &shard.forward), FERRY_OK, "the first forward");
        int first = (int)(layer->calls & 1);
        int32_t was = ids[first * half];
        int32_t *own = (int32_t *)(uintptr_t)shard.forward.ids;
        for (int64_t i = 0; i < slots; i++) own[i] = (own[i] + 1) % (int32_t)job->batch->problem.experts;
        check_status(job->c, rank, ferry_forward(r.layer, &shard.forward), FERRY_OK, "the second forward");
        if (record_of(r.layer, rank, first)->call != 1 || record_of(r.layer, rank, !first)->call != 2 ||
            ids[first * half] != was || ids[!first * half] == was)
            check_fail(job->c, "rank %d: the second call's record or ids took the place of the first call's", rank);
        check_shard_free(&shard);
    }
    check_rank_close(&r);
}

static void test_double_buffer(void **state) {
    static const check_options options = {.backend = FERRY_CPU};
    check_verdict verdict = {0};
    check_case c = {&verdict, &options, NULL};
    check_way way = {.ranks = 2};
    check_batch batch;
    (void)state;
    assert_true(check_batch_make(&problem, &batch));
    check_job job = {&c, &batch, &way, NULL, NULL};
    check_launch(&job, call_twice, 0);
    check_batch_free(&batch);
    if (check_failed(&c)) fail_msg("%s", verdict.text);
}

/* Progress of any rank starts the deadline anew: a call may take longer than the deadline. */
static void test_progress(void **state) {
    static const check_options options = {.backend = FERRY_CPU};
    check_verdict verdict = {0};
    check_case c = {&verdict, &options, NULL};
    lateness late = {"progress", "gate+up", 0, 0, 0, 0.12, CHECK_SAVED, 64, 0, 0};
    check_way way = way_of(&late);
    check_batch batch;
    (void)state;
    way.compute_workers = 1;
    way.progress_timeout_s = 0.3;
    assert_true(check_batch_make(&problem, &batch));
    for (late.phase_of_steps = 0; late.phase_of_steps < STRIDE; late.phase_of_steps++) {
        double begin = check_now();
        check_result *result = check_run(&c, &batch, &way);
        assert_true(check_failed(&c) || check_now() - begin > 0.3);
        check_result_free(result);
    }
    check_batch_free(&batch);
    if (check_failed(&c)) fail_msg("%s", verdict.text);
}

/* A wait may go on for another rank than before: that the former one has left since is no fault. */
static void wait_for_two(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    _Atomic int *over = job->user;
    check_rank r;
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (rank == 1)
        while (!atomic_load(over)) check_sleep(0.001);
    if (rank == 2) {
        fy_wait wait;
        while (!atomic_load(&fy_control_of(r.comm, 0)->left)) check_sleep(0.001);
        fy_wait_begin(&wait, r.comm, FERRY_PHASE_SUM, 0, "a slot's result", 10);
        check_status(job->c, rank, fy_wait_turn(&wait, 1, 0), FERRY_OK, "the first turn, for rank 0");
        wait.awaited_rank = 1;
        check_status(job->c, rank, fy_wait_turn(&wait, 1, 0), FERRY_OK, "a turn for rank 1");
        wait.awaited_rank = 0;
        check_status(job->c, rank, fy_wait_turn(&wait, 1, 0), FERRY_E_PEER, "the second turn for rank 0");
        atomic_store(over, 1);
    }
    check_rank_close(&r);
}

static void test_awaited_rank_changes(void **state) {
    static const check_options options = {.backend = FERRY_CPU};
    check_verdict verdict = {0};
    check_case c = {&verdict, &options, NULL};
    check_way way = {.ranks = 3};
    check_batch batch;
    _Atomic int over = 0;
    (void)state;
    assert_true(check_batch_make(&problem, &batch));
    check_job job = {&c, &batch, &way, NULL, (void *)&over};
    check_launch(&job, wait_for_two, 0);
    check_batch_free(&batch);
    if (check_failed(&c)) fail_msg("%s", verdict.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_writers),
        cmocka_unit_test(test_double_buffer),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_awaited_rank_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
