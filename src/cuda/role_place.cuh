/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place launch of the schedule: which row each slot becomes, and the row tiles.
 * Reads: peers' published slots and headers; what the wait launch has laid.
 * Writes: row <-> slot tables, tiles, the head's numbers; zeros to the counters of the compute launch.
 * Waits on: nothing.  Publishes: nothing; the launch's end does.
 * Registers: no limit worth stating.
 */
#ifndef FERRY_CUDA_ROLE_PLACE_CUH
#define FERRY_CUDA_ROLE_PLACE_CUH

#include "cuda/role_list.cuh"
#include "cuda/role_report.cuh"

/* Slots of rank `from` that thread `thread` of `threads` places, several looks on their way at once. */
FY_DEVICE void fy_place_slots(const fy_gpu_call &c, int from, int64_t thread, int64_t threads) {
    const int looks = 4;
    int parity = c.table.state->calls & 1;
    int64_t all = (int64_t)fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[parity])[from].tokens * c.slots;
    const int2 *slots = fy_symmetric_at<int2>(c, from, c.at.slots[parity]);
    int32_t *slot_row = c.table.slot_row + from * (int64_t)c.max_tokens * c.slots;
    for (int64_t i0 = thread; i0 < all; i0 += looks * threads) {
        int2 slot[looks];
        int row[looks];
#pragma unroll
        for (int k = 0; k < looks; k++) {
            slot[k] = make_int2(-1, 0);
            if (i0 + k * threads < all) slot[k] = __ldcg(slots + i0 + k * threads);
        }
#pragma unroll
        for (int k = 0; k < looks; k++) row[k] = slot[k].x < 0 ? -1 : c.table.expert_local[slot[k].x];
#pragma unroll
        for (int k = 0; k < looks; k++)
            if (row[k] >= 0) row[k] = c.table.base[(int64_t)row[k] * c.ranks + from] + slot[k].y;
#pragma unroll
        for (int k = 0; k < looks; k++) {
            int64_t i = i0 + k * threads;
            if (i >= all) break;
            slot_row[i] = row[k];
            fy_gpu_source source = {from, (int32_t)i};
            if (row[k] >= 0) c.table.source[row[k]] = source;
        }
    }
}

/* All slots of all ranks, by the first `blocks` blocks. */
FY_DEVICE void fy_place_role(const fy_gpu_call &c, int blocks) {
    /* Ranks side by side, so that nobody's slots are waited for after another's. */
    int teams = min(c.ranks, blocks), team = (int)blockIdx.x % teams, size = (blocks - team + teams - 1) / teams;
    for (int r = team; r < c.ranks; r += teams)
        fy_place_slots(c, (c.rank + r) % c.ranks, blockIdx.x / teams * (int64_t)blockDim.x + threadIdx.x,
                       (int64_t)size * blockDim.x);
}

/* Blocks that lay the tiles of so many experts. */
FY_RULE int fy_lay_blocks(int local_experts) {
    int blocks = (local_experts * 32 + FY_PLACE_THREADS - 1) / FY_PLACE_THREADS;
    return blocks < 1 ? 1 : blocks > FY_LAY_BLOCKS ? (int)FY_LAY_BLOCKS : blocks;
}

/* Row tiles, a warp for the tiles of an expert, and zeros for the counters of the compute launch; `blocks` blocks, this
 * one number `block`. */
FY_DEVICE void fy_lay_role(const fy_gpu_call &c, int block, int blocks) {
    fy_gpu_state *state = c.table.state;
    int thread = block * (int)blockDim.x + (int)threadIdx.x, threads = blocks * (int)blockDim.x;
    int shared_blocks = c.shared > 0 ? (int)fy_divide_up(state->tokens, FY_BLOCK_ROWS) : 0;
    for (int b = thread; b < state->blocks; b += threads) c.table.pulled[b] = c.table.made[b] = c.table.sent[b] = 0;
    for (int b = thread; b < shared_blocks; b += threads)
        c.table.made[c.max_blocks + b] = c.table.sent[c.max_blocks + b] = 0;
    fy_head head = fy_head_of(c);
    if (thread == 0) fy_mark_head(c, head);
    for (int e = thread / 32; e < c.local_experts; e += threads / 32) {
        int first = c.table.first_tile[e], end = c.table.first_tile[e + 1], first_block = c.table.first_block[e],
            end_block = c.table.first_block[e + 1];
        for (int t = first + thread % 32; t < end; t += 32) {
            fy_tile_place p = fy_tile_at(first_block, end_block, c.ring_blocks, t - first);
            int m = (int)(p.block / c.ring_blocks),
                walk = state->tiles - c.table.macro_tile[m + 1] + t - c.table.macro_tile[m];
            if (t < head.first || t >= head.end || !fy_head_is_sorted(c))
                c.table.tile[walk] = fy_lay_tile(c, walk, e, p);
            if (t == head.end) state->head_end = (int)p.block * FY_BLOCK_ROWS;
        }
    }
}

/* What a block of the place launch does: the last ones lay tiles, list and report. */
FY_DEVICE void fy_place_block(const fy_gpu_call &c) {
    int lay = fy_lay_blocks(c.local_experts), place = (int)gridDim.x - lay - 2, block = blockIdx.x;
    if (block < place)
        fy_place_role(c, place);
    else if (block < place + lay)
        fy_lay_role(c, block - place, lay);
    else if (block == place + lay)
        fy_list_role(c);
    else
        fy_report_role(c);
}

#endif
