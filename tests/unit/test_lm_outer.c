/* SPDX-License-Identifier: Apache-2.0 */
/* Sums across nodes: in node order bit for bit, piece by piece, and a node that is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/launch.h"
#include "lm/error.h"
#include "lm/outer.h"

#include <string.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_in_node_order), cmocka_unit_test(a_lost_node_is_said),
                                       cmocka_unit_test(one_node_needs_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
