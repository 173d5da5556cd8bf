/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of placement, ring and walk, each against its definition by brute force over random sizes. */
#include "rules/place.h"
#include "rules/ring.h"
#include "rules/walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static uint64_t state = 20240607;
static int64_t random_below(int64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

static void split_covers_every_item_once(void **unused) {
    (void)unused;
    for (int trial = 0; trial < 2000; trial++) {
        int64_t items = random_below(200), blocks = 1 + random_below(12), next = 0;
        for (int64_t b = 0; b < blocks; b++) {
            assert_int_equal(fy_split_first(items, blocks, b), next);
            int64_t size = fy_split_size(items, blocks, b);
            assert_true(size == items / blocks || size == items / blocks + 1);
            if (b > 0) assert_true(size <= fy_split_size(items, blocks, b - 1));
            for (int64_t i = next; i < next + size; i++) assert_int_equal(fy_split_owner(items, blocks, i), b);
            next += size;
        }
        assert_int_equal(next, items);
    }
}

static void ids_out_of_range_become_minus_one(void **unused) {
    (void)unused;
    const struct {
        int64_t id;
        int32_t clean;
        int bad;
    } table[] = {{0, 0, 0},   {6, 6, 0},          {-1, -1, 0},        {7, -1, 1},
                 {-2, -1, 1}, {INT64_MAX, -1, 1}, {INT64_MIN, -1, 1}, {INT64_C(1) << 32, -1, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int bad = 5;
        assert_int_equal(fy_clean_id(table[i].id, 7, &bad), table[i].clean);
        assert_int_equal(bad, table[i].bad);
    }
}

static void most_blocks_is_reached_and_never_passed(void **unused) {
    (void)unused;
    for (int trial = 0; trial < 3000; trial++) {
        int64_t rows = random_below(1000), experts = 1 + random_below(9), left = rows, blocks = 0;
        for (int64_t e = 0; e < experts; e++) {
            int64_t take = e == experts - 1 ? left : random_below(left + 1);
            blocks += fy_blocks_of_rows(take);
            left -= take;
        }
        assert_true(blocks <= fy_most_blocks(rows, experts));
        /* The worst split: one row for all experts but the last. */
        int64_t used = experts < rows ? experts : rows;
        if (used > 0) assert_true(used - 1 + fy_blocks_of_rows(rows - used + 1) <= fy_most_blocks(rows, experts));
    }
    assert_int_equal(fy_most_blocks(0, 4), 0);
    assert_int_equal(fy_most_blocks(4, 4), 4);
    assert_int_equal(fy_most_blocks(65, 1), 2);
}

/* Every block in exactly one step; macrobatches in the walk's order, blocks ascending inside; steps found again. */
static void walk_visits_every_block_once(void **unused) {
    (void)unused;
    for (int trial = 0; trial < 4000; trial++) {
        fy_walk w = {.blocks = random_below(60), .ring_blocks = 1 + random_below(20), .backward = trial & 1};
        w.mini_blocks = 1 + random_below(w.ring_blocks);
        char seen[64] = {0};
        int64_t steps = fy_walk_steps(w), last_macro = -1, next_block = -1;
        for (int64_t s = 0; s < steps; s++) {
            fy_step_place p = fy_walk_place(w, s);
            assert_int_equal(fy_walk_step_of(w, p.macrobatch, p.minibatch), s);
            assert_true(p.first_block < p.end_block && p.end_block - p.first_block <= w.mini_blocks);
            assert_int_equal(p.first_block / w.ring_blocks, p.macrobatch);
            assert_int_equal((p.end_block - 1) / w.ring_blocks, p.macrobatch);
            if (p.macrobatch != last_macro) {
                if (last_macro >= 0) assert_int_equal(p.macrobatch, last_macro + (w.backward ? 1 : -1));
                assert_int_equal(p.first_block, p.macrobatch * w.ring_blocks);
            } else {
                assert_int_equal(p.first_block, next_block);
            }
            last_macro = p.macrobatch;
            next_block = p.end_block;
            for (int64_t b = p.first_block; b < p.end_block; b++) assert_int_equal(seen[b]++, 0);
        }
        for (int64_t b = 0; b < w.blocks; b++) assert_int_equal(seen[b], 1);
        if (steps > 0 && !w.backward) assert_int_equal(last_macro, 0);
    }
}

/* The step before on the same ring rows: the latest earlier step whose ring positions overlap. */
static void before_is_the_last_user_of_the_ring_rows(void **unused) {
    (void)unused;
    for (int trial = 0; trial < 1000; trial++) {
        fy_walk w = {.blocks = 1 + random_below(40), .ring_blocks = 1 + random_below(12), .backward = trial & 1};
        w.mini_blocks = 1 + random_below(w.ring_blocks);
        int64_t user[16];
        memset(user, 0xff, sizeof user);
        for (int64_t s = 0; s < fy_walk_steps(w); s++) {
            fy_step_place p = fy_walk_place(w, s);
            int64_t expected = -1;
            for (int64_t b = p.first_block; b < p.end_block; b++) {
                int64_t position = fy_ring_row(b * FY_BLOCK_ROWS, w.ring_blocks * FY_BLOCK_ROWS) / FY_BLOCK_ROWS;
                if (user[position] > expected) expected = user[position];
                user[position] = s;
            }
            assert_int_equal(fy_walk_before(w, s), expected);
            if (s > 0) assert_int_equal(fy_walk_make_first(w, s), expected != s - 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_covers_every_item_once),
        cmocka_unit_test(ids_out_of_range_become_minus_one),
        cmocka_unit_test(most_blocks_is_reached_and_never_passed),
        cmocka_unit_test(walk_visits_every_block_once),
        cmocka_unit_test(before_is_the_last_user_of_the_ring_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
