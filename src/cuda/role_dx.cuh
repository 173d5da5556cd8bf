/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The push of dx rows and dweights: the end of a DX tile in the consumers. Rows leave as the forward's result rows do
 * (role_push.cuh), to the same slots; the first column tile also sums the row's parts of its dweight, ascending.
 * Reads: accumulators, source[row], parts_ring.  Writes: slots and dweights of the owners; the shared expert's rows.
 * Waits on: nothing.
 * Publishes: sent[block], one for each warp and column tile; whoever completes a block adds 1 to arrived[token] of
 *            each of its rows at the owner.
 * Registers: within the consumers' 216, beside 128 accumulators.
 */
#ifndef FERRY_CUDA_ROLE_DX_CUH
#define FERRY_CUDA_ROLE_DX_CUH

#include "cuda/block_backward.cuh"
#include "cuda/role_push.cuh"

/* Where the warp's row `lane` (of 16) goes; NULL: nowhere, a padding row. */
FY_DEVICE uint16_t *fy_dx_target(const fy_gpu_call &c, const fy_task &t, int group, int warp, int lane) {
    int r = group * FY_BLOCK_ROWS + warp * 16 + (lane & 15);
    if (r >= t.rows) return nullptr;
    if (t.shared) return c.table.shared_y + (int64_t)(t.row + r) * c.hidden;
    int2 from = *(const int2 *)&c.table.source[t.row + r];
    return (uint16_t *)(c.peer[from.x] + c.at.y) + (int64_t)from.y * c.hidden;
}

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
