/* SPDX-License-Identifier: Apache-2.0 */
/* What a case should have made. */
#include "progress.h"

#include "cuda/block_backward.cuh"
#include "kinds.h"
#include "layer.h"
#include "scheduler.h"

case_progress progress;

void progress_clear() {
    progress.begun.clear();
    for (std::vector<int> *v : {&progress.x_read, &progress.h_read, &progress.graded, &progress.dx_made})
        v->assign(layer.call.max_blocks + 1, 0);
    progress.weights.assign(layer.segment.size() + 1, 0);
    progress.open.assign(2 * layer.turn.size(), {NOTHING, false});
}

static size_t tiles_of_forward(int row_tiles, int shared_tiles) {
    const fy_gpu_call &c = layer.call;
    size_t tiles = (size_t)row_tiles * (fy_columns_of(c, FY_MAKE) + fy_columns_of(c, FY_FINISH));
    if (c.shared > 0)
        tiles += (size_t)shared_tiles * (fy_columns_of(c, FY_SHARED_MAKE) + fy_columns_of(c, FY_SHARED_FINISH));
    return tiles;
}

static size_t tiles_of_backward(int row_tiles, int shared_tiles) {
    const fy_gpu_call &c = layer.call;
    const fy_gpu_backward &b = layer.back;
    size_t dx = layer.data ? fy_parts(c.hidden, FY_TILE_N) : 0, tiles = 0;
    for (int t = 0; t < row_tiles; t++) {
        int last_block = layer.tile[t].row / ROWS_OF_BLOCK + fy_tile_blocks_used(layer.tile[t].rows) - 1;
        if (fy_is_missing(c, b, last_block, layer.ringed)) tiles += fy_parts(c.intermediate, FY_HALF_N);
        tiles += fy_parts(c.intermediate, FY_TILE_N) + dx;
    }
    if (c.shared > 0) {
        size_t remake = b.remake_shared ? fy_parts(c.shared, FY_HALF_N) : 0;
        tiles += shared_tiles * (remake + fy_parts(c.shared, FY_TILE_N) + dx) + b.weight_tickets[1];
    }
    for (int e = 0; e < c.experts; e++) {
        int first = layer.first_block[e], end = layer.first_block[e + 1];
        int pieces = end == first ? 1 : (end - 1) / c.ring_blocks - first / c.ring_blocks + 1;
        tiles += (size_t)pieces * b.weight_tickets[0];
    }
    return tiles;
}

static bool counters_are_full(int block) {
    const fy_gpu_call &c = layer.call;
    uint32_t hidden = fy_parts(c.hidden, FY_TILE_N);
    if (!layer.backward) return layer.made[block] == (uint32_t)fy_columns_of(c, FY_MAKE) && layer.sent[block] == hidden;
    return progress.graded[block] == fy_parts(c.intermediate, FY_TILE_N) &&
           layer.sent[block] == (layer.data ? hidden : 0) && layer.pulled[block] == 2 * ROWS_OF_BLOCK;
}

void progress_judge() {
    for (const auto &[name, times] : progress.begun)
        if (times != 1) return fail("a tile of %s was made %d times", name_of_kind(std::get<0>(name)), times);
    const int32_t *end = layer.unit[layer.units()].ticket;
    int shared_tiles = fy_parts(layer.state.tokens, FY_TILE_M);
    size_t tickets = (size_t)end[0] + end[1];
    size_t tiles = (layer.backward ? tiles_of_backward : tiles_of_forward)(layer.state.tiles, shared_tiles);
    if (progress.begun.size() != tiles || tickets != tiles)
        return fail("%zu tiles were made, there are %zu and %zu tickets", progress.begun.size(), tiles, tickets);
    for (int block = 0; block < layer.state.blocks; block++)
        if (!counters_are_full(block)) return fail("counters of block %d at the end", block);
}
