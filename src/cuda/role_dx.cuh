/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends a DX tile beside the push of its rows (role_push.cuh): the first column tile also sums each row's parts of
 * its dweight, ascending, and pushes it.
 * Reads: source[row], parts_ring.  Writes: dweights of the owners.
 * Waits on: nothing.
 * Publishes: nothing; the rows' signals follow.
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

#endif
