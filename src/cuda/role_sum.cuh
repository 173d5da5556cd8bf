/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weighted sum of a token's result rows: out = shared row + sum over slots ascending of weight * row, product and
 * sum each rounded to F32, then BF16 once. Warps take tokens from the list of complete ones (role_collect.cuh), a part
 * of the columns at a time; warps whose own work is over join them.
 * Reads: published slots (own), router weights (never that of a slot without an expert), y slots, the shared rows.
 * Writes: out.
 * Waits on: complete[n], the n-th token that has become complete.
 * Publishes: nothing; the end of the launch is the signal.
 * Registers: within the producer warpgroup's 120, and the consumers' 192, with 16 loads in flight: what is left of the
 *            sums when the products end is in nobody's shadow, so as many as fit. (A trace takes registers.)
 */
#ifndef FERRY_CUDA_ROLE_SUM_CUH
#define FERRY_CUDA_ROLE_SUM_CUH

#include "cuda/prim_matrix.cuh"
#include "cuda/role_schedule.cuh"
#include "cuda/trace.cuh"

enum {
    FY_SUM_ROWS = FY_TRACE ? 4 : 8,   /* that a warp has in flight at once, */
    FY_SUM_CHUNKS = FY_TRACE ? 1 : 2, /* so many times 512 bytes of each */
    FY_SUM_REST_NS = 512              /* between two looks at the list */
};

FY_DEVICE void fy_add_weighted(float (&acc)[8], const uint4 &row, float weight) {
    const uint32_t part[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __fadd_rn(acc[2 * i], __fmul_rn(weight, __uint_as_float(part[i] << 16)));
        acc[2 * i + 1] = __fadd_rn(acc[2 * i + 1], __fmul_rn(weight, __uint_as_float(part[i] & 0xffff0000u)));
    }
}

FY_DEVICE void fy_widen(float (&acc)[8], const uint4 &row) {
    const uint32_t part[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __uint_as_float(part[i] << 16);
        acc[2 * i + 1] = __uint_as_float(part[i] & 0xffff0000u);
    }
}

/* A token's slots as a warp sees them: lane k holds slot k's weight; slots beyond 32 are looked up as they come. */
typedef struct fy_sum_slots {
    const fy_gpu_slot *slot;
    float weight;
    bool has;
} fy_sum_slots;

FY_DEVICE fy_sum_slots fy_look_at_slots(const fy_gpu_call &c, int token, int lane) {
    uint64_t at = c.at.slots[c.table.state->calls & 1];
    fy_sum_slots s = {fy_symmetric_at<const fy_gpu_slot>(c, c.rank, at) + (int64_t)token * c.slots, 0.0f, false};
    if (lane < c.slots) {
        s.has = s.slot[lane].expert >= 0;
        if (s.has) s.weight = __ldcg(c.weights + (int64_t)token * c.slots + lane);
    }
    return s;
}

/* Columns [begin, end) of a token, in units of 8. */
FY_DEVICE void fy_sum_token(const fy_gpu_call &c, int token, int begin, int end, int lane) {
    const fy_sum_slots s = fy_look_at_slots(c, token, lane);
    int row16 = c.hidden / 8;
    const uint4 *y = fy_symmetric_at<const uint4>(c, c.rank, c.at.y) + (int64_t)token * c.slots * row16;
    const uint4 *shared = (const uint4 *)c.table.shared_y + (int64_t)token * row16;
    uint32_t present = __ballot_sync(0xffffffffu, s.has);
#pragma unroll 1
    for (int i = begin + lane; i - lane < end; i += 32 * FY_SUM_CHUNKS) {
        float acc[FY_SUM_CHUNKS][8] = {};
#pragma unroll
        for (int h = 0; h < FY_SUM_CHUNKS; h++) {
            if (c.shared == 0 || i + 32 * h >= end) continue;
            uint4 v = __ldcg(shared + i + 32 * h);
            fy_widen(acc[h], v);
        }
#pragma unroll 1
        for (int k0 = 0; k0 < c.slots; k0 += FY_SUM_ROWS) {
            uint4 v[FY_SUM_CHUNKS][FY_SUM_ROWS];
            uint32_t has = present >> (k0 & 31);
            if (k0 >= 32) {
                has = 0;
#pragma unroll 1
                for (int b = 0; b < FY_SUM_ROWS; b++)
                    if (k0 + b < c.slots && s.slot[k0 + b].expert >= 0) has |= 1u << b;
            }
            const uint4 *from = y + (int64_t)k0 * row16 + i;
#pragma unroll
            for (int b = 0; b < FY_SUM_ROWS; b++) {
#pragma unroll
                for (int h = 0; h < FY_SUM_CHUNKS; h++)
                    if ((has >> b & 1) && i + 32 * h < end) v[h][b] = __ldcg(from + 32 * h);
                from += row16;
            }
#pragma unroll
            for (int b = 0; b < FY_SUM_ROWS; b++) {
                float w = __shfl_sync(0xffffffffu, s.weight, (k0 + b) & 31);
                if (!(has >> b & 1)) continue;
                if (k0 >= 32) w = c.weights[(int64_t)token * c.slots + k0 + b];
#pragma unroll
                for (int h = 0; h < FY_SUM_CHUNKS; h++)
                    if (i + 32 * h < end) fy_add_weighted(acc[h], v[h][b], w);
            }
        }
#pragma unroll
        for (int h = 0; h < FY_SUM_CHUNKS; h++)
            if (i + 32 * h < end)
                __stcs((uint4 *)(c.out + token * c.out_stride) + i + 32 * h,
                       make_uint4(fy_pack(acc[h][0], acc[h][1]), fy_pack(acc[h][2], acc[h][3]),
                                  fy_pack(acc[h][4], acc[h][5]), fy_pack(acc[h][6], acc[h][7])));
    }
}

/* A ticket is a part of the columns of the n-th token of the list. */
FY_DEVICE void fy_sum_role(const fy_gpu_call &c) {
    fy_gpu_state *state = c.table.state;
    int lane = threadIdx.x & 31, parts = (int)fy_divide_up(c.hidden, FY_SUM_COLUMNS), units = state->tokens * parts;
    int unit = fy_take(&state->take_sum, units, lane);
    while (unit >= 0) {
        const uint32_t *entry = c.table.complete + unit / parts;
        fy_trace_begin(0, -1);
        /* When no more rows come at all, who collects finds out first, and says how many tokens are complete. */
        bool there = fy_await<false>(c, entry, 1, FY_AT_ARRIVED, -1, 2 * c.progress_timeout_ns, FY_SUM_REST_NS);
        fy_trace_next(FY_MARK_TOKENS, -1);
        if (!__all_sync(0xffffffffu, there)) return;
        int token = (int)fy_load_relaxed(entry) - 1, begin = unit % parts * (FY_SUM_COLUMNS / 8);
        fy_sum_token(c, token, begin, min(begin + FY_SUM_COLUMNS / 8, c.hidden / 8), lane);
        fy_trace_end(0, FY_MARK_SUM);
        unit = fy_take(&state->take_sum, units, lane);
    }
}

#endif
