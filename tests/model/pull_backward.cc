/* SPDX-License-Identifier: Apache-2.0 */
/* A pulling warp of the backward, after role_pull_backward.cuh, whose looks and waits it calls. */
#include "cuda/role_pull_backward.cuh"
#include "layer.h"
#include "progress.h"
#include "ring_room.h"
#include "roles.h"

enum { LANES = 32 };

/* dout of a row, and x where it is missing. */
static void put_row(int row) {
    int block = row / ROWS_OF_BLOCK;
    check_room(block, "a pulled row");
    layer.dout_ring.row(layer.ring_row(row)) = row;
    if (fy_is_missing(layer.call, layer.back, block, layer.ringed)) layer.x_ring.row(layer.ring_row(row)) = row;
}

/* Weights of all rows, zeros of those behind `rows`, which are padding. */
static void put_weights(int row, int rows, int count, bool fan_out) {
    step();
    for (int r = 0; r < count; r++) {
        check_room(row / ROWS_OF_BLOCK, "a router weight");
        layer.weight_ring.row(layer.ring_row(row + r)) = row + r;
    }
    for (int r = rows; r < count; r++) put_row(row + r);
    if (fan_out) fy_add_relaxed_gpu(&layer.call.table.pulled[row / ROWS_OF_BLOCK], 2 * count - rows);
}

/* Which of `rows` rows are their tokens' first in the macrobatch; the others are brought with those. */
static uint32_t first_ones(int row, int rows, bool fan_out) {
    uint32_t due = (1u << rows) - 1;
    for (int r = 0; r < rows && fan_out; r++)
        for (int lane = 0; lane < layer.call.slots; lane++) {
            const fy_gpu_source &source = layer.source[row + r];
            int along = fy_row_of_slot(layer.call, layer.back, source.rank, source.slot, row, lane);
            if (along >= 0 && along < row + r) due &= ~(1u << r);
        }
    return due;
}

static void pull_ticket(int number_of_tile, int first, int count, bool fan_out) {
    const fy_gpu_call &c = layer.call;
    const fy_gpu_tile &tile = layer.tile[number_of_tile];
    int row = tile.row + first, rows = max(0, min(tile.rows - first, count));
    if (first >= (int)fy_round_to_blocks(tile.rows)) return;
    uint32_t due = first_ones(row, rows, fan_out);
    fy_wait_for_backward_ring(c, layer.back, row / ROWS_OF_BLOCK);
    put_weights(row, rows, count, fan_out);
    for (; due; due &= due - 1) {
        int r = __ffs(due) - 1, mine[LANES];
        const fy_gpu_source &source = layer.source[row + r];
        for (int lane = 0; lane < LANES; lane++)
            mine[lane] = fan_out     ? fy_row_of_slot(c, layer.back, source.rank, source.slot, row, lane)
                         : lane == 0 ? row + r
                                     : -1;
        for (int to : mine)
            if (to >= 0) fy_wait_for_backward_ring(c, layer.back, to / ROWS_OF_BLOCK);
        for (int to : mine) {
            if (to < 0) continue;
            step();
            put_row(to);
        }
        for (int to : mine)
            if (fan_out && to >= 0) fy_add_relaxed_gpu(&c.table.pulled[to / ROWS_OF_BLOCK], 1);
    }
    if (!fan_out) fy_add_relaxed_gpu(&c.table.pulled[row / ROWS_OF_BLOCK], 2 * count);
}

void pull_backward_head(int, int) {
    const int per_tile = FY_TILE_M / FY_HEAD_ROWS;
    int tickets = layer.back_state.head_tiles * per_tile, ticket;
    while ((ticket = (int)atomicAdd(&layer.back_state.take_head, 1u)) < tickets)
        pull_ticket(ticket / per_tile, ticket % per_tile * FY_HEAD_ROWS, FY_HEAD_ROWS, false);
}

void pull_backward_role(int block, int warp) {
    pull_backward_head(block, warp);
    const int per_tile = FY_TILE_M / FY_PULL_ROWS;
    int head = layer.back_state.head_tiles, tickets = (layer.state.tiles - head) * per_tile, ticket;
    while ((ticket = (int)atomicAdd(&layer.back_state.take_pull, 1u)) < tickets)
        pull_ticket(head + ticket / per_tile, ticket % per_tile * FY_PULL_ROWS, FY_PULL_ROWS,
                    layer.call.fan_out && layer.call.slots <= LANES);
}
