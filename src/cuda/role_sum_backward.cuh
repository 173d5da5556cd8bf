/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of a token's dx rows: dx = shared row + rows of its slots ascending, each sum rounded to F32, then BF16 once;
 * and its dweights. A warp takes one token at a time, in token order.
 * Reads: the context's experts of own slots, dx slots and dweights that peers pushed, the shared rows.
 * Writes: dx, dweights.
 * Waits on: arrived[token]: all its slots that have an expert, and the shared row.
 * Publishes: nothing; the end of the launch is the signal.
 * Registers: the producer warpgroup's 72; four rows in flight.
 */
#ifndef FERRY_CUDA_ROLE_SUM_BACKWARD_CUH
#define FERRY_CUDA_ROLE_SUM_BACKWARD_CUH

#include "cuda/backward.h"
#include "cuda/prim_matrix.cuh"
#include "cuda/trace.cuh"

FY_DEVICE void fy_add_row(float (&acc)[8], const uint4 &row) {
    const uint32_t part[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __fadd_rn(acc[2 * i], __uint_as_float(part[i] << 16));
        acc[2 * i + 1] = __fadd_rn(acc[2 * i + 1], __uint_as_float(part[i] & 0xffff0000u));
    }
}

FY_DEVICE void fy_sum_dx(const fy_gpu_call &c, const fy_gpu_backward &b, int token, const int32_t *expert, int lane) {
    const int batch = 4;
    int row16 = c.hidden / 8;
    const uint4 *rows = (const uint4 *)(c.peer[c.rank] + c.at.y) + (int64_t)token * c.slots * row16;
    const uint4 *shared = (const uint4 *)c.table.shared_y + (int64_t)token * row16;
    uint4 *dx = (uint4 *)(b.dx + token * b.dx_stride);
#pragma unroll 1
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
#pragma unroll 1
        for (int k0 = 0; k0 < c.slots; k0 += batch) {
            uint4 v[batch];
            bool has[batch];
#pragma unroll
            for (int q = 0; q < batch; q++) {
                has[q] = k0 + q < c.slots && expert[k0 + q] >= 0;
                if (has[q]) v[q] = __ldcg(rows + (int64_t)(k0 + q) * row16 + i);
            }
#pragma unroll
            for (int q = 0; q < batch; q++)
                if (has[q]) fy_add_row(acc, v[q]);
        }
        __stcs(dx + i, make_uint4(fy_pack(acc[0], acc[1]), fy_pack(acc[2], acc[3]), fy_pack(acc[4], acc[5]),
                                  fy_pack(acc[6], acc[7])));
    }
    const float *dweights = (const float *)(c.peer[c.rank] + b.at.dweights) + (int64_t)token * c.slots;
    if (b.dweights)
#pragma unroll 1
        for (int k = lane; k < c.slots; k += 32)
            b.dweights[(int64_t)token * c.slots + k] = expert[k] >= 0 ? __ldcg(dweights + k) : 0.0f;
}

FY_DEVICE void fy_sum_backward_role(const fy_gpu_call &c, const fy_gpu_backward &b) {
    int lane = threadIdx.x & 31, tokens = c.table.state->tokens;
    const uint32_t *arrived = (const uint32_t *)(c.peer[c.rank] + b.at.arrived);
    if (!(b.parts & FERRY_BACKWARD_DATA)) return;
    for (;;) {
        int token = 0;
        if (lane == 0) token = (int)atomicAdd(&b.table.state->take_sum, 1u);
        token = __shfl_sync(0xffffffffu, token, 0);
        if (token >= tokens) return;
        const int32_t *expert = b.context.expert + (int64_t)token * c.slots;
        int expected = 0;
#pragma unroll 1
        for (int k = lane; k < c.slots; k += 32) expected += expert[k] >= 0;
        expected = __reduce_add_sync(0xffffffffu, expected) + (c.shared > 0);
        bool ok = true;
        fy_trace_begin(0, -1);
        if (lane == 0) ok = fy_await<true>(c, arrived + token, expected, FY_AT_ARRIVED, -1, c.progress_timeout_ns);
        fy_trace_end(0, FY_AT_ARRIVED);
        if (!__all_sync(0xffffffffu, ok)) return;
        fy_trace_begin(0, -1);
        fy_sum_dx(c, b, token, expert, lane);
        fy_trace_end(0, FY_MARK_SUM);
    }
}

#endif
