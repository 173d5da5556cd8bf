/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's row tiles: closed forms against walking over the blocks one by one. */
#include "rules/tile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 400 };

/* Tiles of blocks [first, end): a new one after two blocks and at every macrobatch cut. */
static int walk(int64_t first, int64_t end, int64_t ring, fy_tile_place *tiles) {
    int count = 0;
    int64_t piece = first;
    for (int64_t block = first; block < end; block++) {
        if (block % ring == 0) piece = block;
        if ((block - piece) % FY_TILE_BLOCKS != 0) continue;
        int64_t cut = (block / ring + 1) * ring;
        tiles[count++] = (fy_tile_place){block, piece, cut < end ? cut : end};
    }
    return count;
}

static void tiles_are_those_of_a_walk(void **state) {
    (void)state;
    fy_tile_place expected[MOST];
    for (int64_t ring = 1; ring <= 9; ring++)
        for (int64_t first = 0; first < 20; first++)
            for (int64_t end = first; end < first + 40; end++) {
                int count = walk(first, end, ring, expected);
                assert_int_equal(fy_tiles_between(first, end, ring), count);
                for (int i = 0; i < count; i++) {
                    fy_tile_place p = fy_tile_at(first, end, ring, i);
                    assert_int_equal(p.block, expected[i].block);
                    assert_int_equal(p.piece_first, expected[i].piece_first);
                    assert_int_equal(p.piece_end, expected[i].piece_end);
                }
            }
}

static void steps_are_waves_of_product_tiles(void **state) {
    (void)state;
    /* 148 multiprocessors, intermediate 2048, hidden 7168: two waves of 128 x 256 over 4096 columns. */
    assert_int_equal(fy_two_wave_rows(148, 7168, 2048), 2368);
    assert_int_equal(fy_step_rows(148, 8, 7168, 2048), 2368);
    /* A narrow product: one wave where rows come from peers. */
    assert_int_equal(fy_two_wave_rows(132, 2048, 768), 5632);
    assert_int_equal(fy_step_rows(132, 1, 2048, 768), 5632);
    assert_int_equal(fy_step_rows(132, 2, 2048, 768), 2816);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_are_those_of_a_walk),
                                       cmocka_unit_test(steps_are_waves_of_product_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
