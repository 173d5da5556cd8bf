/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends a DX tile beside the push of its rows (role_push.cuh): the first column tile also sums each row's parts of
 * its dweight, ascending, and pushes it; then the rows' signals.
 * Reads: source[row], parts_ring.  Writes: dweights of the owners.
 * Waits on: the first warp for the other three, inside the block, before it publishes.
 * Publishes: sent[block], one for each column tile; whoever completes a block adds 1 to arrived[token] of each of its
 *            rows at the owner. By the first warp for all four, a little later than stored, when the stores have
 *            drained: a release waits for what the whole multiprocessor has under way.
 * Registers: within the consumers' 216, beside 128 accumulators.
 */
#ifndef FERRY_CUDA_ROLE_DX_CUH
#define FERRY_CUDA_ROLE_DX_CUH

#include "cuda/block_backward.cuh"
#include "cuda/role_push.cuh"

FY_DEVICE void fy_push_dweights(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t, int group, int warp,
                                int lane) {
    int r = group * FY_BLOCK_ROWS + warp * 16 + lane;
    if (lane >= 16 || r >= t.rows) return;
    int64_t parts = fy_parts(c.intermediate, FY_TILE_N);
    const float *part = b.table.parts_ring + (t.load_row + r) * parts;
    float sum = __ldcg(part);
#pragma unroll 1
    for (int64_t i = 1; i < parts; i++) sum = __fadd_rn(sum, __ldcg(part + i));
    int2 from = *(const int2 *)&c.table.source[t.row + r];
    __stcg((float *)(c.peer[from.x] + b.at.dweights) + from.y, sum);
}

/* A warp has stored its part of a tile. The warpgroup's first warp waits for that, no sooner than it signals. */
FY_DEVICE void fy_push_done(int group, int warp) {
    if (warp > 0) fy_group_arrive(group + 3);
}

/*
 * First warp: its warpgroup has stored a column tile of block `counter`, whose `rows` rows begin at `row`. `arrived`:
 * where the owners' counters of tokens are.
 */
FY_DEVICE void fy_push_signal(const fy_gpu_call &c, uint64_t arrived, int counter, int row, int rows, int group,
                              int lane) {
    uint32_t all = fy_parts(c.hidden, FY_TILE_N), before = 0;
    fy_group_sync(group + 3);
    if (lane == 0) before = fy_fetch_add_release_gpu(&c.table.sent[counter], 1);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 != all) return;
    fy_fence_sys(); /* what the others have released is then before what every lane tells */
    __syncwarp();
    fy_fence_sys();
    fy_tell_owners(c, arrived, counter, row, rows, lane);
}

#endif
