/* SPDX-License-Identifier: Apache-2.0 */
/* A pulling warp of the forward, after role_pull.cuh, whose looks and waits it calls. */
#include "cuda/role_pull.cuh"
#include "layer.h"
#include "progress.h"
#include "roles.h"

#include <vector>

enum { LANES = 32 };

/* x of a row: over that of another block only once all its products are over. */
static void put_x(int row) {
    int block = row / ROWS_OF_BLOCK;
    bool saved = layer.keep && block < layer.call.context_blocks;
    int &x = saved ? layer.x_context.row(row) : layer.x_ring.row(layer.ring_row(row));
    int old = x / ROWS_OF_BLOCK;
    if (x != NOTHING && old != block && progress.x_read[old] != fy_columns_of(layer.call, FY_MAKE))
        fail("x of block %d written over that of block %d, which %d tiles have read", block, old, progress.x_read[old]);
    x = row;
}

/* Which of `rows` rows are their tokens' first in the macrobatch; the others are brought with those. */
static uint32_t first_ones(int row, int rows, bool fan_out) {
    uint32_t due = (1u << rows) - 1;
    for (int r = 0; r < rows && fan_out; r++)
        for (int lane = 0; lane < layer.call.slots; lane++) {
            const fy_gpu_source &source = layer.source[row + r];
            int along = fy_row_along(layer.call, source.rank, source.slot, row, lane);
            if (along >= 0 && along < row + r) due &= ~(1u << r);
        }
    return due;
}

static void pull_ticket(int ticket, int rows_of_ticket, bool fan_out) {
    const fy_gpu_call &c = layer.call;
    const int per_tile = FY_TILE_M / rows_of_ticket;
    const fy_gpu_tile &tile = layer.tile[ticket / per_tile];
    int first = ticket % per_tile * rows_of_ticket, row = tile.row + first;
    int rows = max(0, min(tile.rows - first, rows_of_ticket));
    if (first >= (int)fy_round_to_blocks(tile.rows)) return;
    if (rows < rows_of_ticket) { /* zeros of padding */
        fy_wait_for_ring(c, row);
        for (int r = rows; r < rows_of_ticket; r++) {
            step();
            put_x(row + r);
        }
    }
    std::vector<int> brought;
    for (uint32_t due = first_ones(row, rows, fan_out); due;) {
        std::vector<int> mine; /* where two token rows go */
        for (int i = 0; i < 2 && due; i++, due &= due - 1) {
            int r = __ffs(due) - 1;
            const fy_gpu_source &source = layer.source[row + r];
            if (!fan_out) mine.push_back(row + r);
            for (int lane = 0; lane < LANES && fan_out; lane++) {
                int to = fy_row_along(c, source.rank, source.slot, row, lane);
                if (to >= 0) mine.push_back(to);
            }
        }
        for (int to : mine) fy_wait_for_ring(c, to);
        for (int to : mine) {
            step();
            put_x(to);
        }
        brought.insert(brought.end(), mine.begin(), mine.end());
    }
    for (int to : brought) fy_add_relaxed_gpu(&c.table.pulled[to / ROWS_OF_BLOCK], 1);
    if (rows < rows_of_ticket) fy_add_relaxed_gpu(&c.table.pulled[row / ROWS_OF_BLOCK], rows_of_ticket - rows);
}

void pull_forward_head(int, int) {
    int tickets = layer.state.head_tiles * (FY_TILE_M / FY_HEAD_ROWS), ticket;
    while ((ticket = (int)atomicAdd(&layer.state.take_head, 1u)) < tickets) pull_ticket(ticket, FY_HEAD_ROWS, false);
}

void pull_forward_role(int block, int warp) {
    pull_forward_head(block, warp);
    const int per_tile = FY_TILE_M / FY_PULL_ROWS;
    int head = layer.state.head_tiles * per_tile, tickets = layer.state.tiles * per_tile - head, ticket;
    bool fan_out = layer.call.fan_out && layer.call.slots <= LANES;
    while ((ticket = (int)atomicAdd(&layer.state.take_pull, 1u)) < tickets)
        pull_ticket(head + ticket, FY_PULL_ROWS, fan_out && head + ticket >= layer.state.all_head_tiles * per_tile);
}
