/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weighted sum of a token's result rows: out = shared row + sum over slots ascending of weight * row, product and
 * sum each rounded to F32, then BF16 once. A warp takes one token at a time, in token order.
 * Reads: published slots (own), router weights (never that of a slot without an expert), y slots, the shared rows.
 * Writes: out.
 * Waits on: arrived[token]: all its slots that have an expert, and the shared row.
 * Publishes: nothing; the end of the launch is the signal.
 * Registers: the producer warpgroup's 72; four rows in flight.
 */
#ifndef FERRY_CUDA_ROLE_SUM_CUH
#define FERRY_CUDA_ROLE_SUM_CUH

#include "cuda/prim_matrix.cuh"
#include "cuda/role_schedule.cuh"

FY_DEVICE void fy_add_weighted(float (&acc)[8], const uint4 &row, float weight)
{
    const uint32_t part[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __fadd_rn(acc[2 * i], __fmul_rn(weight, __uint_as_float(part[i] << 16)));
        acc[2 * i + 1] = __fadd_rn(acc[2 * i + 1], __fmul_rn(weight, __uint_as_float(part[i] & 0xffff0000u)));
    }
}

FY_DEVICE void fy_sum_token(const fy_gpu_call &c, int token, const fy_gpu_slot *slots, int lane)
{
    const int batch = 4;
    int row16 = c.hidden / 8;
    const uint4 *y = fy_symmetric_at<const uint4>(c, c.rank, c.at.y) + (int64_t)token * c.slots * row16;
    const uint4 *shared = (const uint4 *)c.table.shared_y + (int64_t)token * row16;
    const float *weights = c.weights + (int64_t)token * c.slots;
    uint4 *out = (uint4 *)(c.out + token * c.out_stride);
    for (int i = lane; i < row16; i += 32) {
        float acc[8] = {};
        if (c.shared > 0) {
            uint4 v = __ldcg(shared + i);
            const uint32_t part[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                acc[2 * j] = __uint_as_float(part[j] << 16);
                acc[2 * j + 1] = __uint_as_float(part[j] & 0xffff0000u);
            }
        }
        for (int k0 = 0; k0 < c.slots; k0 += batch) {
            uint4 v[batch];
            bool has[batch];
#pragma unroll
            for (int b = 0; b < batch; b++) {
                has[b] = k0 + b < c.slots && slots[k0 + b].expert >= 0;
                if (has[b]) v[b] = __ldcg(y + (int64_t)(k0 + b) * row16 + i);
            }
#pragma unroll
            for (int b = 0; b < batch; b++)
                if (has[b]) fy_add_weighted(acc, v[b], weights[k0 + b]);
        }
        uint4 r = make_uint4(fy_pack(acc[0], acc[1]), fy_pack(acc[2], acc[3]), fy_pack(acc[4], acc[5]),
                             fy_pack(acc[6], acc[7]));
        __stcs(out + i, r);
    }
}

FY_DEVICE void fy_sum_role(const fy_gpu_call &c)
{
    int lane = threadIdx.x & 31, tokens = c.table.state->tokens;
    const fy_gpu_slot *all_slots = fy_symmetric_at<const fy_gpu_slot>(c, c.rank, c.at.slots[c.table.state->calls & 1]);
    const uint32_t *arrived = fy_symmetric_at<const uint32_t>(c, c.rank, c.at.arrived);
    for (;;) {
        int token = 0;
        if (lane == 0) token = (int)atomicAdd(&c.table.state->take_sum, 1u);
        token = __shfl_sync(0xffffffffu, token, 0);
        if (token >= tokens) return;
        const fy_gpu_slot *slots = all_slots + (int64_t)token * c.slots;
        int expected = 0;
        for (int k = lane; k < c.slots; k += 32) expected += slots[k].expert >= 0;
        expected = __reduce_add_sync(0xffffffffu, expected) + (c.shared > 0);
        bool ok = true;
        if (lane == 0)
            ok = fy_await<true>(c, arrived + token, expected, FY_AT_ARRIVED, -1, c.progress_timeout_ns);
        if (!__all_sync(0xffffffffu, ok)) return;
        fy_sum_token(c, token, slots, lane);
    }
}

#endif
