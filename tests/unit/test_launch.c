/* SPDX-License-Identifier: Apache-2.0 */
/* Launching ranks: every rank runs, exit codes come back, a dead child is said and ends nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/launch.h"
#include "comm/clock.h"

enum { RANKS = 5 };

/* What the ranks are told and what they leave. */
typedef struct board {
    int exit_code[RANKS];
    int kill_rank; /* this one ends itself by a signal; -1: none */
    int hang_rank; /* this one never ends; -1: none */
    _Atomic int ran[RANKS];
    int sum[RANKS];
} board;

static int rank_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    board *b = user;
    int all[RANKS], mine = 10 + rank;
    b->ran[rank]++;
    if (rank == b->kill_rank) raise(SIGKILL);
    while (rank == b->hang_rank) pause();
    if (b->kill_rank < 0 && b->hang_rank < 0) {
        if (bootstrap->rank != rank || bootstrap->nranks != RANKS) return 90;
        if (bootstrap->allgather(bootstrap->user, &mine, all, sizeof mine)) return 91;
        for (int r = 0; r < RANKS; r++) b->sum[rank] += all[r];
    }
    return b->exit_code[rank];
}

static board *new_board(void) {
    board *b = cli_shared_alloc(sizeof *b);
    assert_non_null(b);
    b->kill_rank = b->hang_rank = -1;
    return b;
}

static void check_all_ran(const board *b) {
    for (int r = 0; r < RANKS; r++) assert_int_equal(b->ran[r], 1);
}

static void ranks_meet(void **state) {
    (void)state;
    for (int processes = 0; processes < 2; processes++) {
        board *b = new_board();
        cli_launch_options options = {.nranks = RANKS, .processes = processes, .timeout_s = 30};
        assert_int_equal(cli_launch(&options, rank_main, b), 0);
        check_all_ran(b);
        for (int r = 0; r < RANKS; r++) assert_int_equal(b->sum[r], 10 * RANKS + RANKS * (RANKS - 1) / 2);
        cli_shared_free(b, sizeof *b);
    }
}

static void exit_codes_come_back(void **state) {
    (void)state;
    for (int processes = 0; processes < 2; processes++) {
        board *b = new_board();
        b->exit_code[3] = 42;
        cli_launch_options options = {.nranks = RANKS, .processes = processes, .timeout_s = 30};
        assert_int_equal(cli_launch(&options, rank_main, b), 42);
        check_all_ran(b);
        cli_shared_free(b, sizeof *b);
    }
}

static void a_killed_child_is_reported(void **state) {
    (void)state;
    board *b = new_board();
    b->kill_rank = 2;
    cli_launch_options options = {.nranks = RANKS, .processes = 1, .timeout_s = 30};
    assert_int_equal(cli_launch(&options, rank_main, b), 1);
    check_all_ran(b);
    cli_shared_free(b, sizeof *b);
}

/* The child of this fork, counted from 0, dies before it has met anybody; -1: none. */
static int forks, dying_fork = -1;
static void before_fork(void) { forks++; }
static void in_child(void) {
    if (forks - 1 == dying_fork) raise(SIGKILL);
}

static void a_child_that_dies_before_all_have_met(void **state) {
    (void)state;
    assert_int_equal(pthread_atfork(before_fork, NULL, in_child), 0);
    board *b = new_board();
    cli_launch_options options = {.nranks = 2, .nodes = 2, .processes = 1, .timeout_s = 600};
    int64_t begin = fy_now_ns();
    forks = 0;
    dying_fork = 1;
    assert_int_equal(cli_launch(&options, rank_main, b), 1);
    assert_true(fy_now_ns() - begin < INT64_C(60) * 1000000000);
    cli_shared_free(b, sizeof *b);
    dying_fork = -1;
}

static void a_hanging_child_is_ended_after_a_failure(void **state) {
    (void)state;
    board *b = new_board();
    b->hang_rank = 1;
    b->exit_code[0] = 7;
    cli_launch_options options = {.nranks = RANKS, .processes = 1, .timeout_s = 1};
    assert_int_equal(cli_launch(&options, rank_main, b), 7);
    check_all_ran(b);
    cli_shared_free(b, sizeof *b);
}

/* Rank 0 fails; the others gather with it, inside their node or across. */
static int rank_of_two_nodes(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const int *failing_gathers = user;
    int all[2], gathers = 0;
    while (rank != 0 || gathers < *failing_gathers) {
        if (bootstrap[CLI_NODE].allgather(bootstrap[CLI_NODE].user, &rank, all, sizeof rank)) return 91;
        if (bootstrap[CLI_ACROSS].allgather(bootstrap[CLI_ACROSS].user, &rank, all, sizeof rank)) return 92;
        gathers++;
    }
    return 7;
}

static void a_failed_rank_is_not_waited_for(void **state) {
    (void)state;
    for (int gathers = 0; gathers < 3; gathers++) {
        for (int processes = 0; processes < 2; processes++) {
            cli_launch_options options = {.nranks = 2, .nodes = 2, .processes = processes, .timeout_s = 600};
            int64_t begin = fy_now_ns();
            assert_int_not_equal(cli_launch(&options, rank_of_two_nodes, &gathers), 0);
            assert_true(fy_now_ns() - begin < INT64_C(60) * 1000000000);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet),
        cmocka_unit_test(exit_codes_come_back),
        cmocka_unit_test(a_killed_child_is_reported),
        cmocka_unit_test(a_child_that_dies_before_all_have_met),
        cmocka_unit_test(a_hanging_child_is_ended_after_a_failure),
        cmocka_unit_test(a_failed_rank_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
