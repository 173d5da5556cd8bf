/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of product tickets (tickets.cuh), and the tiles of a sorted head: one block of the place launch.
 * Reads: what the wait launch has laid.  Writes: units, the head's tiles, steps to the report page.
 * Waits on: nothing.  Publishes: nothing; the launch's end does.
 * Registers: no limit worth stating.
 */
#ifndef FERRY_CUDA_ROLE_LIST_CUH
#define FERRY_CUDA_ROLE_LIST_CUH

#include "cuda/tiles.cuh"
#include "rules/side.h"

/*
 * The list of product tickets but for their numbers: a lane's part; how many units there are. A step is mini_tiles row
 * tiles of one macrobatch and has two units: it is made, and finished when the next step is made, so that h has time to
 * become complete; but not over a macrobatch's end, behind which steps take the place of those before them in the ring.
 * The shared expert is made before and finished behind the first step's h.
 */
FY_DEVICE int fy_list_units(const fy_gpu_call &c, int lane) {
    fy_gpu_state *state = c.table.state;
    const int32_t *macro_tile = c.table.macro_tile;
    int tokens = state->tokens, tiles = state->tiles, mini = c.mini_tiles, units = 0;
    auto put = [&](int at, int kind, int first, int count) {
        fy_gpu_unit u = {kind, first, count, FY_GROUP_TILES};
        c.table.unit[at] = u;
    };
    int shared_tiles = c.shared > 0 ? fy_parts(tokens, FY_TILE_M) : 0;
    fy_gpu_unit open = {shared_tiles > 0 ? FY_SHARED_FINISH : FY_END, 0, shared_tiles}; /* what is made, not finished */
    if (shared_tiles > 0) {
        if (lane == 0) put(0, FY_SHARED_MAKE, 0, shared_tiles);
        units = 1;
    }
    for (int m = state->macrobatches - 1; m >= 0; m--) {
        int walked = tiles - macro_tile[m + 1], count = macro_tile[m + 1] - macro_tile[m];
        int steps = fy_parts(count, mini), finishes = open.kind != FY_END; /* before the second step */
        for (int s = lane; s < steps; s += 32) {
            int first = s * mini, at = units + (s == 0 ? open.kind == FY_FINISH : 2 * s + finishes - 1);
            put(at, FY_MAKE, walked + first, min(count - first, mini));
            if (s > 0) put(at + 1, FY_FINISH, walked + first - mini, mini);
        }
        if (finishes && lane == 0) put(units + (open.kind != FY_FINISH), open.kind, open.first_tile, open.tiles);
        units += 2 * steps + finishes - 1;
        int last = (steps - 1) * mini;
        open = {FY_FINISH, walked + last, count - last};
    }
    int all = units + (open.kind != FY_END);
    if (lane == 0) {
        open.group = FY_LAST_GROUP_TILES;
        if (all > units) c.table.unit[units] = open;
        put(all, FY_END, 0, 0);
        state->units = all;
        c.page->steps = state->steps = all / 2 - (shared_tiles > 0);
    }
    return all;
}

/*
 * What a unit needs: to make h, room in the ring, which the macrobatch walked before leaves with its last unit; to
 * finish, h of the same tiles, and one unit more behind that (the unit before, but for the next step's h), so that the
 * sides stay close together: they share rows in the second-level cache.
 */
FY_DEVICE int fy_needs_of(const fy_gpu_call &c, const fy_gpu_unit *unit, int index) {
    const fy_gpu_state *state = c.table.state;
    int kind = unit[index].kind, first = unit[index].first_tile;
    if (kind == FY_SHARED_MAKE) return -1;
    if (kind == FY_MAKE) {
        int m = fy_find(c.table.macro_tile, state->macrobatches, state->tiles - 1 - first); /* walked backwards */
        int begin = state->tiles - c.table.macro_tile[m + 1], step = (first - begin) / c.mini_tiles;
        /* Of a macrobatch's steps before this one there are two units each, but the last one's second comes later. */
        return begin == 0 ? -1 : index - max(1, 2 * step);
    }
    const fy_gpu_unit *before = &unit[index - 1];
    bool next = before->kind == FY_MAKE && (kind == FY_SHARED_FINISH || before->first_tile != first);
    return index - 1 - next;
}

/* What units need, and the first ticket of each side in them and behind the last; one warp. */
FY_DEVICE void fy_number_tickets(const fy_gpu_call &c, int units) {
    fy_gpu_unit *unit = c.table.unit;
    int lane = threadIdx.x & 31, before[FY_SIDES] = {0, 0};
    for (int first = 0; first <= units; first += 32) {
        int i = first + lane, columns = 0, tiles = 0;
        if (i < units) {
            tiles = unit[i].tiles;
            columns = fy_columns_of(c, unit[i].kind);
            unit[i].needs = fy_needs_of(c, unit, i);
            /* The shared expert is one piece, which either way cuts alike. */
            unit[i].by_piece = fy_side_by_piece((int64_t)c.table.state->tiles * columns, c.local_experts);
        }
#pragma unroll
        for (int s = 0; s < FY_SIDES; s++) {
            int mine = fy_side_tickets(tiles, columns, s), sum = mine;
            for (int d = 1; d < 32; d *= 2) {
                int below = __shfl_up_sync(0xffffffffu, sum, d);
                if (lane >= d) sum += below;
            }
            if (i <= units) unit[i].ticket[s] = before[s] + sum - mine;
            before[s] += __shfl_sync(0xffffffffu, sum, 31);
        }
    }
}

/* The list of tickets, and the tiles of a sorted head: one block, beside those that place. */
FY_DEVICE void fy_list_role(const fy_gpu_call &c) {
    __shared__ int key[FY_HEAD_SORTED];
    fy_head head = fy_head_of(c);
    static_assert(32 + FY_HEAD_SORTED <= FY_PLACE_THREADS, "a thread sorts a tile");
    int index = (int)threadIdx.x - 32, expert; /* the first warp has the tickets */
    bool sorts = fy_head_is_sorted(c) && index >= 0 && index < head.end - head.first;
    fy_gpu_tile tile;
    if (threadIdx.x < 32) {
        int units = fy_list_units(c, threadIdx.x);
        __syncwarp();
        fy_number_tickets(c, units);
    } else if (sorts) {
        fy_tile_place p = fy_place_of_tile(c, head.first + index, &expert);
        tile = fy_lay_tile(c, index, expert, p);
        key[index] = fy_head_key(c, expert, tile);
    }
    __syncthreads();
    if (sorts) {
        int walk = fy_sort_in_head(key, head.end - head.first, index, &tile);
        c.table.tile[walk] = tile;
    }
}

#endif
