/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pull of the backward: warps beside the loading thread take tickets of FY_PULL_ROWS rows in walk order and copy
 * rows of dout, and of x where neither the context nor the ring has it, from their owners' staged memory into the
 * ring. A token that several rows of one macrobatch want is read once and stored to all of them. The router weight of
 * every row comes along. The rows at the head of the walk are an exception: all warps bring them, in small tickets.
 * Padding rows of what is brought become zeros.
 * Reads: tile table, source[row], slot_row; staged dout, x and weights of all ranks.
 * Writes: dout ring, x ring, weight_ring.
 * Waits on: made[block], sent[block] and gathered[segment of the block] of the macrobatch before: nobody reads the ring
 *           rows any more that this macrobatch's pulls and products overwrite.
 * Publishes: pulled[block]: one for each row, padding included, and one for its weight.
 * Registers: the producer warpgroup's 72: six 16-byte loads in flight.
 */
#ifndef FERRY_CUDA_ROLE_PULL_BACKWARD_CUH
#define FERRY_CUDA_ROLE_PULL_BACKWARD_CUH

#include "cuda/block_backward.cuh"
#include "cuda/pulled.cuh"
#include "cuda/trace.cuh"

/* The ring rows of a block are free once the macrobatch walked before is done with them. */
FY_DEVICE bool fy_wait_for_backward_ring(const fy_gpu_call &c, const fy_gpu_backward &b, int block) {
    int before = block - c.ring_blocks;
    if (before < 0) return true;
    bool ok = true;
#pragma unroll 1
    for (int reader = 0; reader < 3 && ok; reader++) {
        const uint32_t *flag = &c.table.made[before];
        uint32_t target = fy_parts(c.intermediate, FY_TILE_N);
        if (reader == 1) {
            flag = &c.table.sent[before];
            target = b.parts & FERRY_BACKWARD_DATA ? fy_parts(c.hidden, FY_TILE_N) : 0;
        } else if (reader == 2) {
            flag = &b.table.gathered[b.table.block_segment[before]];
            target = b.parts & FERRY_BACKWARD_WEIGHT ? 2 * (uint32_t)b.weight_tickets[0] : 0;
        }
        ok = fy_await<false>(c, flag, target, FY_AT_BACKWARD_SPACE, c.rank, c.progress_timeout_ns);
    }
    return ok;
}

/* One row to the ring rows of the lanes in `wanted`. */
FY_DEVICE void fy_pull_row_to(uint16_t *to_ring, const uint4 *from, int row16, uint32_t wanted, int ring_row,
                              int lane) {
    const int batch = 6;
    uint4 *ring = (uint4 *)to_ring;
#pragma unroll 1
    for (int i = lane; i - lane < row16; i += 32 * batch) {
        uint4 v[batch];
#pragma unroll
        for (int q = 0; q < batch; q++)
            if (i + 32 * q < row16) v[q] = __ldcg(from + i + 32 * q);
#pragma unroll 1
        for (uint32_t left = wanted; left; left &= left - 1) {
            uint4 *to = ring + fy_wide(__shfl_sync(0xffffffffu, ring_row, __ffs(left) - 1), row16);
#pragma unroll
            for (int q = 0; q < batch; q++)
                if (i + 32 * q < row16) __stcg(to + i + 32 * q, v[q]);
        }
    }
}

/* `count` more are stored in the block of each lane's row `mine` (-1: none). */
FY_DEVICE void fy_signal_pulled(const fy_gpu_call &c, int mine, int count) {
    fy_stored_before();
    if (mine >= 0) fy_add_relaxed_gpu(&c.table.pulled[mine / FY_BLOCK_ROWS], count);
}

/* A ticket's own part: weights of its `count` rows, and zeros in those that are padding, behind `rows`. */
FY_DEVICE void fy_pull_weights(const fy_gpu_call &c, const fy_gpu_backward &b, int row, int rows, int count,
                               int2 source, bool fan_out, int lane) {
    int ring_row = row % (c.ring_blocks * FY_BLOCK_ROWS), row16 = c.hidden / 8;
    float weight = 0.0f;
    if (lane < rows) weight = __ldcg((const float *)(c.peer[source.x] + b.at.weights) + source.y);
    if (lane < count) __stcg(b.table.weight_ring + ring_row + lane, weight);
    uint64_t padding = fy_wide(ring_row + rows, c.hidden);
    fy_zero_rows(b.table.dout_ring + padding, count - rows, row16, lane);
    if (fy_is_missing(c, b, row / FY_BLOCK_ROWS, b.table.state->ringed != 0))
        fy_zero_rows(c.table.x_ring + padding, count - rows, row16, lane);
    if (fan_out) fy_signal_pulled(c, lane == 0 ? row : -1, 2 * count - rows);
}

/* Lane k: the row that slot k of the token has here, if the pull of `row` may bring it: in the same macrobatch, and not
 * of the head; -1 otherwise. */
FY_DEVICE int fy_row_of_slot(const fy_gpu_call &c, const fy_gpu_backward &b, int rank, int slot, int row, int lane) {
    if (lane >= c.slots) return -1;
    int mine = c.table.slot_row[fy_wide(rank, c.max_tokens * c.slots) + (uint32_t)(slot / c.slots * c.slots + lane)];
    int ring_rows = c.ring_blocks * FY_BLOCK_ROWS;
    return mine >= b.table.state->head_end && mine / ring_rows == row / ring_rows ? mine : -1;
}

/* The rows of one ticket: `count` from place `first` of a tile. False: the call is over. */
FY_DEVICE bool fy_pull_backward_ticket(const fy_gpu_call &c, const fy_gpu_backward &b, int tile_number, int first,
                                       int count, bool fan_out, int lane) {
    int4 tile = *(const int4 *)&b.table.tile[tile_number];
    int row = tile.y + first;
    if (first >= (int)fy_round_to_blocks(tile.z)) return true;
    fy_trace_begin(0, row / FY_BLOCK_ROWS);
    int rows = max(0, min(tile.z - first, count));
    int2 source = make_int2(0, 0);
    if (lane < rows) source = *(const int2 *)&c.table.source[row + lane];
    /* Which of the rows are their tokens' first in the macrobatch: several looks are on their way at once. */
    uint32_t due = (1u << rows) - 1;
    if (fan_out) {
        const int looks = 4;
#pragma unroll 1
        for (int r0 = 0; r0 < rows; r0 += looks) {
            int along[looks];
#pragma unroll
            for (int i = 0; i < looks; i++) {
                int rank = __shfl_sync(0xffffffffu, source.x, r0 + i),
                    slot = __shfl_sync(0xffffffffu, source.y, r0 + i);
                along[i] = r0 + i < rows ? fy_row_of_slot(c, b, rank, slot, row, lane) : -1;
            }
#pragma unroll
            for (int i = 0; i < looks; i++)
                if (__any_sync(0xffffffffu, along[i] >= 0 && along[i] < row + r0 + i)) due &= ~(1u << (r0 + i));
        }
    }
    fy_trace_begin(1, row / FY_BLOCK_ROWS);
    bool room = __all_sync(0xffffffffu, lane > 0 || fy_wait_for_backward_ring(c, b, row / FY_BLOCK_ROWS));
    fy_trace_end(1, FY_AT_BACKWARD_SPACE);
    if (!room) return false;
    fy_pull_weights(c, b, row, rows, count, source, fan_out, lane);
#pragma unroll 1
    for (; due; due &= due - 1) {
        int r = __ffs(due) - 1, row16 = c.hidden / 8;
        int rank = __shfl_sync(0xffffffffu, source.x, r), slot = __shfl_sync(0xffffffffu, source.y, r);
        int mine = fan_out ? fy_row_of_slot(c, b, rank, slot, row, lane) : lane == 0 ? row + r : -1;
        fy_trace_begin(1, row / FY_BLOCK_ROWS);
        room = __all_sync(0xffffffffu, mine < 0 || fy_wait_for_backward_ring(c, b, mine / FY_BLOCK_ROWS));
        fy_trace_end(1, FY_AT_BACKWARD_SPACE);
        if (!room) return false;
        int ring_row = mine % (c.ring_blocks * FY_BLOCK_ROWS);
#pragma unroll 1
        for (int x = 0; x < 2; x++) { /* dout, then x where it is missing */
            bool ringed = x && b.table.state->ringed != 0;
            bool here = mine >= 0 && (!x || fy_is_missing(c, b, mine / FY_BLOCK_ROWS, ringed));
            uint32_t wanted = __ballot_sync(0xffffffffu, here);
            if (wanted == 0) break;
            const uint4 *from =
                (const uint4 *)(c.peer[rank] + (x ? c.at.x : b.at.dout)) + fy_wide(slot / c.slots, row16);
            if (!x && !b.staged) from = (const uint4 *)(b.dout + slot / c.slots * b.dout_stride);
            if (x && rank == c.rank) from = (const uint4 *)b.context.own_x + fy_wide(slot / c.slots, row16);
            if (lane == 0) fy_add_relaxed_gpu(rank == c.rank ? &b.table.state->pulls : &b.table.state->remote_pulls, 1);
            fy_pull_row_to(x ? c.table.x_ring : b.table.dout_ring, from, row16, wanted, ring_row, lane);
        }
        if (fan_out) fy_signal_pulled(c, mine, 1);
    }
    if (!fan_out) fy_signal_pulled(c, lane == 0 ? row : -1, 2 * count);
    fy_trace_end(0, FY_MARK_PULL);
    return true;
}

/* The head's rows, in small tickets and each for itself: waits for nobody, so every warp may help. */
FY_DEVICE void fy_pull_backward_head(const fy_gpu_call &c, const fy_gpu_backward &b) {
    const int per_tile = FY_TILE_M / FY_HEAD_ROWS;
    int lane = threadIdx.x & 31, ticket;
    while ((ticket = fy_take(&b.table.state->take_head, b.table.state->head_tiles * per_tile, lane)) >= 0)
        fy_pull_backward_ticket(c, b, ticket / per_tile, ticket % per_tile * FY_HEAD_ROWS, FY_HEAD_ROWS, false, lane);
}

FY_DEVICE void fy_pull_backward_role(const fy_gpu_call &c, const fy_gpu_backward &b) {
    const int per_tile = FY_TILE_M / FY_PULL_ROWS;
    int lane = threadIdx.x & 31, ticket;
    for (;;) {
        int head = b.table.state->head_tiles;
        ticket = fy_take(&b.table.state->take_pull, (c.table.state->tiles - head) * per_tile, lane);
        if (ticket < 0) return;
        if (!fy_pull_backward_ticket(c, b, head + ticket / per_tile, ticket % per_tile * FY_PULL_ROWS, FY_PULL_ROWS,
                                     c.fan_out && c.slots <= 32, lane))
            return;
    }
}

#endif
