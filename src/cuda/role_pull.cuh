/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pull of token rows: warps beside the loading thread take tickets of FY_PULL_ROWS rows in walk order and copy
 * tokens from their owners' staged memory into the x ring. A token that several rows of one macrobatch want is read
 * once, by the ticket of its first row there, and stored to all of them (fan-out).
 * Reads: tile table, source[row], slot_row, staged x of all ranks.  Writes: x ring.
 * Waits on: made[block of the macrobatch before] (its products have read the ring rows that are overwritten).
 * Publishes: pulled[block], rows.
 * Registers: the producer warpgroup's 72: seven 16-byte loads in flight.
 */
#ifndef FERRY_CUDA_ROLE_PULL_CUH
#define FERRY_CUDA_ROLE_PULL_CUH

#include "cuda/block.cuh"
#include "cuda/wait.cuh"

/* The ring row of a padded row is free once the macrobatch walked before has read it. */
FY_DEVICE bool fy_wait_for_ring(const fy_gpu_call &c, int row)
{
    int before = row / FY_BLOCK_ROWS + c.ring_blocks;
    if (before >= c.table.state->blocks) return true;
    return fy_await<false>(c, &c.table.made[before], (uint32_t)fy_divide_up(c.intermediate, FY_HALF_N),
                                   FY_AT_PULL_SPACE, c.rank, c.progress_timeout_ns);
}

/* One token row to the ring rows of the lanes in `wanted`. */
FY_DEVICE void fy_pull_row(const fy_gpu_call &c, const uint4 *from, uint32_t wanted, int ring_row, int lane)
{
    const int batch = 7;
    int row16 = c.hidden / 8;
    uint4 *ring = (uint4 *)c.table.x_ring;
    for (int i = lane; i - lane < row16; i += 32 * batch) {
        uint4 v[batch];
#pragma unroll
        for (int b = 0; b < batch; b++)
            if (i + 32 * b < row16) v[b] = __ldcg(from + i + 32 * b);
        for (uint32_t left = wanted; left; left &= left - 1) {
            uint4 *to = ring + (int64_t)__shfl_sync(0xffffffffu, ring_row, __ffs(left) - 1) * row16;
#pragma unroll
            for (int b = 0; b < batch; b++)
                if (i + 32 * b < row16) __stcg(to + i + 32 * b, v[b]);
        }
    }
}

/* Lane k: the row here that slot k of the token of (rank, slot) has, or -1. Without fan-out: the row itself, lane 0. */
FY_DEVICE int fy_rows_of_token(const fy_gpu_call &c, bool fan_out, int2 from, int row, int lane)
{
    if (!fan_out) return lane == 0 ? row : -1;
    if (lane >= c.slots) return -1;
    int64_t max_slots = (int64_t)c.max_tokens * c.slots;
    return c.table.slot_row[from.x * max_slots + from.y / c.slots * c.slots + lane];
}

FY_DEVICE void fy_pull_role(const fy_gpu_call &c)
{
    int lane = threadIdx.x & 31, row16 = c.hidden / 8, ring_rows = c.ring_blocks * FY_BLOCK_ROWS;
    int per_tile = FY_TILE_M / FY_PULL_ROWS, all = c.table.state->tiles * per_tile;
    bool fan_out = c.fan_out && c.slots <= 32, ok = true;
    while (ok) {
        int ticket = 0;
        if (lane == 0) ticket = (int)atomicAdd(&c.table.state->take_pull, 1u);
        ticket = __shfl_sync(0xffffffffu, ticket, 0);
        if (ticket >= all) break;
        int4 tile = *(const int4 *)&c.table.tile[ticket / per_tile];
        int first = ticket % per_tile * FY_PULL_ROWS, row = tile.y + first, rows = min(tile.z - first, (int)FY_PULL_ROWS);
        if (rows <= 0) continue;
        int macrobatch = row / ring_rows;
        int2 source = make_int2(0, 0);
        if (lane < rows) source = *(const int2 *)&c.table.source[row + lane];
        int2 from = make_int2(__shfl_sync(0xffffffffu, source.x, 0), __shfl_sync(0xffffffffu, source.y, 0));
        int next = fy_rows_of_token(c, fan_out, from, row, lane);
        for (int r = 0; r < rows && ok; r++) {
            int mine = next, rank = from.x;
            const uint4 *x = (const uint4 *)(c.peer[from.x] + c.at.x) + (int64_t)(from.y / c.slots) * row16;
            from.x = __shfl_sync(0xffffffffu, source.x, r + 1);
            from.y = __shfl_sync(0xffffffffu, source.y, r + 1);
            if (r + 1 < rows) next = fy_rows_of_token(c, fan_out, from, row + r + 1, lane);
            bool wanted = mine >= 0 && mine / ring_rows == macrobatch;
            /* The ticket of the token's first row in the macrobatch brings all of them. */
            if (__any_sync(0xffffffffu, wanted && mine < row + r)) continue;
            ok = __all_sync(0xffffffffu, !wanted || fy_wait_for_ring(c, mine));
            if (!ok) break;
            if (lane == 0) fy_add_relaxed_gpu(rank == c.rank ? &c.table.state->pulls : &c.table.state->remote_pulls, 1);
            fy_pull_row(c, x, __ballot_sync(0xffffffffu, wanted), mine % ring_rows, lane);
            fy_fence_async();
            __syncwarp();
            fy_fence_gpu();
            if (wanted) fy_add_relaxed_gpu(&c.table.pulled[mine / FY_BLOCK_ROWS], 1);
        }
    }
}

#endif
