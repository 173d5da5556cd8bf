/* SPDX-License-Identifier: Apache-2.0 */
/* Sums across nodes: in node order bit for bit, piece by piece, and a node that is lost; watching for that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/launch.h"
#include "lm/error.h"
#include "lm/outer.h"
#include "lm/outer_watch.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NODES = 4, RANKS = 2, COUNT = (2 << 18) + 77 }; /* two pieces and a part of one */

typedef struct board {
    float *sums[NODES * RANKS]; /* [COUNT] what each rank got */
    int leaves;                 /* this node goes away before the sum; -1: none */
    int said[NODES * RANKS];    /* 1: the rank said that it lost the other nodes */
} board;

/* Magnitudes differ so much that another order of additions gives other bits. */
static float value(int rank, int64_t i) {
    static const float scales[NODES] = {1, 1e6f, -1e6f, 1e-3f};
    uint32_t mixed = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    return scales[(rank / RANKS + i) % NODES] * (float)(mixed >> 8) / 16777216.0f;
}

static int rank_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    board *b = user;
    lm_config config = {.backend = FERRY_CPU};
    lm_outer *outer;
    assert_int_equal(bootstrap[CLI_NODE].rank, rank % RANKS);
    assert_int_equal(bootstrap[CLI_ACROSS].rank, rank / RANKS);
    assert_int_equal(bootstrap[CLI_ACROSS].nranks, NODES);
    if (lm_outer_create(&bootstrap[CLI_ACROSS], &lm_ops_cpu, &config, &outer)) return 1;
    for (int64_t i = 0; i < COUNT; i++) b->sums[rank][i] = value(rank, i);
    int bad = rank / RANKS == b->leaves ? 0 : lm_outer_sum(outer, b->sums[rank], COUNT);
    b->said[rank] = bad && strstr(lm_error(), "lost the other nodes");
    lm_outer_destroy(outer);
    return bad ? 3 : 0;
}

static board *new_board(void) {
    board *b = cli_shared_alloc(sizeof *b);
    assert_non_null(b);
    b->leaves = -1;
    for (int r = 0; r < NODES * RANKS; r++) {
        b->sums[r] = cli_shared_alloc(COUNT * sizeof(float));
        assert_non_null(b->sums[r]);
    }
    return b;
}

static void free_board(board *b) {
    for (int r = 0; r < NODES * RANKS; r++) cli_shared_free(b->sums[r], COUNT * sizeof(float));
    cli_shared_free(b, sizeof *b);
}

static void sums_are_in_node_order(void **state) {
    (void)state;
    for (int processes = 0; processes < 2; processes++) {
        board *b = new_board();
        cli_launch_options options = {.nranks = RANKS, .nodes = NODES, .processes = processes, .timeout_s = 60};
        assert_int_equal(cli_launch(&options, rank_main, b), 0);
        int64_t differ = 0, other_order = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            for (int place = 0; place < RANKS; place++) {
                float sum = value(place, i), back = value((NODES - 1) * RANKS + place, i);
                for (int node = 1; node < NODES; node++) sum += value(node * RANKS + place, i);
                for (int node = NODES - 2; node >= 0; node--) back += value(node * RANKS + place, i);
                other_order += sum != back;
                for (int node = 0; node < NODES; node++) differ += b->sums[node * RANKS + place][i] != sum;
            }
        }
        assert_int_equal(differ, 0);
        assert_true(other_order > COUNT / 10); /* or this test could not fail */
        free_board(b);
    }
}

/* Processes, since threads of a group that one left wait until the deadline. */
static void a_lost_node_is_said(void **state) {
    (void)state;
    board *b = new_board();
    b->leaves = 2;
    cli_launch_options options = {.nranks = RANKS, .nodes = NODES, .processes = 1, .timeout_s = 60};
    assert_int_equal(cli_launch(&options, rank_main, b), 3);
    for (int r = 0; r < NODES * RANKS; r++) assert_int_equal(b->said[r], r / RANKS != b->leaves);
    free_board(b);
}

static void one_node_needs_nobody(void **state) {
    (void)state;
    lm_config config = {.backend = FERRY_CPU};
    lm_outer *outer;
    float values[3] = {1, 2, 3};
    assert_int_equal(lm_outer_create(NULL, &lm_ops_cpu, &config, &outer), 0);
    assert_string_equal(lm_outer_way(outer), "");
    assert_int_equal(lm_outer_sum(outer, values, 3), 0);
    assert_true(values[0] == 1 && values[1] == 2 && values[2] == 3);
    lm_outer_destroy(outer);
}

/* ---- Watching ---- */

typedef enum ending { ALL_WELL, ONE_FAILS, ONE_DIES } ending;

typedef struct watched {
    ending ending;
    _Atomic int lost[NODES]; /* how often it was called */
    int failed[NODES];       /* 1: lm_watch_check failed when it was, and at the end */
    char said[NODES][256];
} watched;

typedef struct lost_user {
    watched *board;
    int node;
    lm_watch *watch;
} lost_user;

static void lost(void *user) {
    lost_user *u = user;
    u->board->lost[u->node]++;
}

static int watch_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    watched *b = user;
    lost_user u = {.board = b, .node = rank};
    int last = rank == NODES - 1;
    if (lm_watch_create(&bootstrap[CLI_ACROSS], lost, &u, &u.watch)) return 1;
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* some rounds pass */
    if (lm_watch_check(u.watch)) return 2;
    if (last && b->ending == ONE_DIES) raise(SIGKILL);
    /* Those who are to lose the last one work on until they have. */
    for (int i = 0; i < 2000 && !last && b->ending != ALL_WELL && !b->lost[rank]; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    b->failed[rank] = lm_watch_check(u.watch) != 0;
    if (b->failed[rank]) snprintf(b->said[rank], sizeof b->said[rank], "%s", lm_error());
    lm_watch_destroy(u.watch, !last || b->ending == ALL_WELL);
    return 0;
}

static void check_watch(ending how, int processes, const char *sentence) {
    watched *b = cli_shared_alloc(sizeof *b);
    assert_non_null(b);
    b->ending = how;
    cli_launch_options options = {.nranks = 1, .nodes = NODES, .processes = processes, .timeout_s = 60};
    assert_int_equal(cli_launch(&options, watch_main, b), how == ONE_DIES ? 1 : 0);
    for (int node = 0; node < NODES; node++) {
        int loses = how != ALL_WELL && node < NODES - 1;
        assert_int_equal(b->lost[node], loses);
        assert_int_equal(b->failed[node], loses);
        if (loses) assert_non_null(strstr(b->said[node], sentence));
    }
    cli_shared_free(b, sizeof *b);
}

static void a_watch_ends_well(void **state) {
    (void)state;
    check_watch(ALL_WELL, 0, "");
    check_watch(ALL_WELL, 1, "");
}

static void a_watch_sees_a_failure(void **state) {
    (void)state;
    check_watch(ONE_FAILS, 0, "node 3 failed");
    check_watch(ONE_FAILS, 1, "node 3 failed");
}

static void a_watch_sees_a_death(void **state) {
    (void)state;
    check_watch(ONE_DIES, 1, "lost the other nodes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_in_node_order), cmocka_unit_test(a_lost_node_is_said),
        cmocka_unit_test(one_node_needs_nobody),  cmocka_unit_test(a_watch_ends_well),
        cmocka_unit_test(a_watch_sees_a_failure), cmocka_unit_test(a_watch_sees_a_death)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
