/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in any order. */
#include "engine.h"

#include "cuda/block_backward.cuh"
#include "cuda/prim_barrier.cuh"
#include "memory.h"
#include "random.h"
#include "scheduler.h"

#include <vector>

static std::vector<std::vector<engine_copy>> ordered; /* of each block */

void engine_clear(int blocks) { ordered.assign(blocks, {}); }

void engine_order(const engine_copy &copy) { ordered[current_block()].push_back(copy); }

static void carry_out(const engine_copy &copy) {
    if (copy.map->bytes == 0) return fail("a copy through a map that nobody has made");
    const tag_memory *from = copy.map->from;
    for (int box = 0; from && box < copy.map->boxes; box++) {
        int *to = (int *)(copy.to + box * FY_BOX_BYTES), row = copy.row + box * ROWS_OF_BLOCK;
        if (from->across > 0)
            to[0] = from->found_piece(row / ROWS_OF_BLOCK, copy.column / COLUMNS_OF_PIECE);
        else
            for (int r = 0; r < ROWS_OF_BLOCK; r++) to[r] = from->found_row(row + r);
    }
    barrier_deliver(copy.full, copy.map->bytes);
}

void engine_role(int block, int) {
    std::vector<engine_copy> &mine = ordered[block];
    for (;;) {
        auto has_orders = [](const void *orders, uint32_t) {
            return !((const std::vector<engine_copy> *)orders)->empty();
        };
        step();
        wait_until(has_orders, &mine, 0, "orders");
        size_t at = below((int)mine.size());
        engine_copy copy = mine[at];
        mine[at] = mine.back();
        mine.pop_back();
        carry_out(copy);
    }
}
