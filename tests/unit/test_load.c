/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load statistics and ready words: the rules against their definitions over random counts; a forward's counts against
 * the ids of all ranks; a word of each expert, set by the weight part alone.
 */
#include "layer_ranks.h"
#include "rules/load.h"

#include <math.h>
#include <string.h>

static uint64_t state = 977;
static int64_t random_below(int64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/* ---- Rules ---- */

static void test_rules(void **unused) {
    (void)unused;
    for (int trial = 0; trial < 500; trial++) {
        int32_t rows[64], rank_of[64];
        int64_t per_rank[8], scratch[8] = {9, 9, 9, 9, 9, 9, 9, 9}, experts = 1 + random_below(64), total = 0, most = 0;
        int ranks = 1 + (int)random_below(8), empty = 0, histogram[FY_LOAD_BINS] = {0};
        memset(per_rank, 0, sizeof per_rank);
        for (int64_t e = 0; e < experts; e++) {
            rows[e] = random_below(3) == 0 ? 0 : (int32_t)random_below(1 << random_below(20));
            rank_of[e] = (int32_t)random_below(ranks);
            per_rank[rank_of[e]] += rows[e];
            total += rows[e];
            most = rows[e] > most ? rows[e] : most;
            empty += rows[e] == 0;
        }
        for (int64_t e = 0; e < experts; e++) {
            double quarters = total ? 4.0 * rows[e] / ((double)total / (double)experts) : 0;
            int bin = 0;
            while (bin < FY_LOAD_BINS - 1 && (double)(bin + 1) <= quarters * (1 + 1e-12)) bin++;
            histogram[bin]++;
        }
        ferry_load l;
        memset(&l, 0xee, sizeof l);
        fy_load_of(rows, rank_of, experts, ranks, scratch, &l);
        int64_t busiest = 0;
        for (int r = 0; r < ranks; r++) busiest = per_rank[r] > busiest ? per_rank[r] : busiest;
        assert_int_equal(l.rows, total);
        assert_int_equal(l.busiest_rows, busiest);
        assert_int_equal(per_rank[l.busiest_rank], busiest);
        for (int r = 0; r < l.busiest_rank; r++) assert_true(per_rank[r] < busiest);
        assert_int_equal(rows[l.busiest_expert], most);
        for (int e = 0; e < l.busiest_expert; e++) assert_true(rows[e] < most);
        assert_int_equal(l.empty_experts, empty);
        assert_int_equal(l.spare, 0);
        double mean = (double)total / ranks, expert_mean = (double)total / (double)experts;
        assert_true(fabs(l.overload - (total ? (double)busiest / mean : 0)) <= 1e-6 * l.overload);
        assert_true(fabs(l.expert_overload - (total ? (double)most / expert_mean : 0)) <= 1e-6 * l.expert_overload);
        assert_memory_equal(l.histogram, histogram, sizeof histogram);
    }
}

/* ---- A layer ---- */

enum { RANKS = 2, TOKENS = 37, SLOTS = 3, EXPERTS = 7, HIDDEN = 16, INNER = 24, LOCAL = 4 };

/* Experts 2 and 6 receive nothing; one slot in eight has no expert, one id is out of range. */
static void draw_ids(int32_t ids[RANKS][TOKENS * SLOTS], int32_t rows[EXPERTS]) {
    memset(rows, 0, EXPERTS * sizeof *rows);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < TOKENS * SLOTS; i++) {
            int e = (int)random_below(EXPERTS);
            ids[r][i] = e == 2 || e == 6 || random_below(8) == 0 ? -1 : e;
            if (ids[r][i] >= 0) rows[ids[r][i]]++;
        }
    }
    if (ids[1][5] >= 0) rows[ids[1][5]]--;
    ids[1][5] = EXPERTS;
}

typedef struct job {
    int32_t *ids;
    int32_t wanted; /* gradients are wanted at all */
    int32_t expert_rows[EXPERTS];
    ferry_load load;
    uint32_t after_data[LOCAL], after_weight[LOCAL];
    int64_t local;
} job;

static ferry_status work(void *argument, int rank, ferry_layer *layer, ferry_context *context) {
    job *j = argument;
    static uint16_t weights[RANKS][LOCAL * HIDDEN * INNER];
    static float gradient[RANKS][LOCAL * HIDDEN * INNER];
    uint16_t x[TOKENS * HIDDEN] = {0}, out[TOKENS * HIDDEN];
    float router[TOKENS * SLOTS] = {0};
    int32_t tokens = TOKENS;
    ferry_forward_args f;
    ferry_backward_args b;
    j->local = ferry_layer_local_experts(layer, rank);
    ferry_forward_args_init(&f);
    f.num_tokens = &tokens;
    f.x = x;
    f.ids = j->ids;
    f.weights = router;
    f.params.gate = f.params.up = dense_matrices(weights[rank], INNER, HIDDEN, FERRY_BF16);
    f.params.down = dense_matrices(weights[rank], HIDDEN, INNER, FERRY_BF16);
    f.out = out;
    f.context = context;
    f.expert_rows = j->expert_rows;
    f.load = &j->load;
    ferry_status status = ferry_forward(layer, &f);
    if (status != FERRY_E_BAD_ID) return status ? status : FERRY_E_INTERNAL; /* one id is bad */
    ferry_backward_args_init(&b);
    b.context = context;
    b.dout = x;
    b.params = f.params;
    b.dx = out;
    if (j->wanted) b.grads.down.to = dense_matrices(gradient[rank], HIDDEN, INNER, FERRY_F32);
    b.parts = FERRY_BACKWARD_DATA;
    b.ready = j->after_data;
    b.ready_value = 5;
    status = ferry_backward(layer, &b);
    b.parts = FERRY_BACKWARD_WEIGHT;
    b.ready = j->after_weight;
    return status ? status : ferry_backward(layer, &b);
}

/* ring: rows, 64 cuts experts at macrobatch ends. */
static void run_layer(int32_t ring, int wanted) {
    int32_t ids[RANKS][TOKENS * SLOTS], rows[EXPERTS], rank_of[EXPERTS] = {0, 0, 0, 0, 1, 1, 1};
    int64_t scratch[RANKS];
    layer_rank ranks[RANKS];
    job jobs[RANKS];
    ferry_load load;
    draw_ids(ids, rows);
    fy_load_of(rows, rank_of, EXPERTS, RANKS, scratch, &load);
    memset(jobs, 0xee, sizeof jobs);
    for (int r = 0; r < RANKS; r++) {
        jobs[r].ids = ids[r];
        jobs[r].wanted = wanted;
        layer_rank_init(&ranks[r], work, &jobs[r]);
        layer_rank_extents(&ranks[r], HIDDEN, INNER, EXPERTS, SLOTS, TOKENS);
        ranks[r].layer.ring_rows = ring;
    }
    run_layer_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_memory_equal(jobs[r].expert_rows, rows, sizeof rows);
        assert_memory_equal(&jobs[r].load, &load, sizeof load);
        for (int e = 0; e < LOCAL; e++) {
            assert_int_equal(jobs[r].after_data[e], 0xeeeeeeee);
            assert_int_equal(jobs[r].after_weight[e], e < jobs[r].local ? 5 : 0xeeeeeeee);
        }
    }
}

static void test_layer(void **unused) {
    (void)unused;
    run_layer(0, 1);
    run_layer(64, 1);
    run_layer(0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
