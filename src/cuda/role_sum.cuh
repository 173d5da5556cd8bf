/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weighted sum of a token's result rows: out = shared row + sum over slots ascending of weight * row, product and
 * sum each rounded to F32, then BF16 once. Warps look over groups of tokens and claim those that are complete, in
 * whatever order they become so, a part of the columns at a time; warps whose own work is over join them.
 * Reads: published slots (own), router weights (never that of a slot without an expert), y slots, the shared rows.
 * Writes: out.
 * Waits on: arrived[token] = 0 for any token that nobody has claimed.
 * Publishes: claimed[group] and their number; the end of the launch is the signal to others.
 * Registers: the producer warpgroup's 88 with eight loads in flight, the consumers' 208 with 16.
 */
#ifndef FERRY_CUDA_ROLE_SUM_CUH
#define FERRY_CUDA_ROLE_SUM_CUH

#include "cuda/prim_matrix.cuh"
#include "cuda/role_schedule.cuh"
#include "cuda/trace.cuh"

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
    fy_sum_slots s;
    s.slot =
        fy_symmetric_at<const fy_gpu_slot>(c, c.rank, c.at.slots[c.table.state->calls & 1]) + (int64_t)token * c.slots;
    s.has = lane < c.slots && s.slot[lane].expert >= 0;
    s.weight = s.has ? c.weights[(int64_t)token * c.slots + lane] : 0.0f;
    return s;
}

/* Columns [begin, end) of a token, in units of 8. */
template <int BATCH, int CHUNKS>
FY_DEVICE void fy_sum_token(const fy_gpu_call &c, int token, const fy_sum_slots &s, int begin, int end, int lane) {
    int row16 = c.hidden / 8;
    const uint4 *y = fy_symmetric_at<const uint4>(c, c.rank, c.at.y) + (int64_t)token * c.slots * row16;
    const uint4 *shared = (const uint4 *)c.table.shared_y + (int64_t)token * row16;
    uint4 *out = (uint4 *)(c.out + token * c.out_stride);
    uint32_t present = __ballot_sync(0xffffffffu, s.has);
    for (int i = begin + lane; i - lane < end; i += 32 * CHUNKS) {
        float acc[CHUNKS][8] = {};
#pragma unroll
        for (int h = 0; h < CHUNKS; h++) {
            if (c.shared == 0 || i + 32 * h >= end) continue;
            uint4 v = __ldcg(shared + i + 32 * h);
            fy_widen(acc[h], v);
        }
        for (int k0 = 0; k0 < c.slots; k0 += BATCH) {
            uint4 v[CHUNKS][BATCH];
            uint32_t has = present >> (k0 & 31);
            if (k0 >= 32) {
                has = 0;
                for (int b = 0; b < BATCH; b++)
                    if (k0 + b < c.slots && s.slot[k0 + b].expert >= 0) has |= 1u << b;
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++)
#pragma unroll
                for (int h = 0; h < CHUNKS; h++)
                    if ((has >> b & 1) && i + 32 * h < end)
                        v[h][b] = __ldcg(y + (int64_t)(k0 + b) * row16 + i + 32 * h);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                float w = __shfl_sync(0xffffffffu, s.weight, (k0 + b) & 31);
                if (!(has >> b & 1)) continue;
                if (k0 >= 32) w = c.weights[(int64_t)token * c.slots + k0 + b];
#pragma unroll
                for (int h = 0; h < CHUNKS; h++)
                    if (i + 32 * h < end) fy_add_weighted(acc[h], v[h][b], w);
            }
        }
#pragma unroll
        for (int h = 0; h < CHUNKS; h++)
            if (i + 32 * h < end)
                __stcs(out + i + 32 * h, make_uint4(fy_pack(acc[h][0], acc[h][1]), fy_pack(acc[h][2], acc[h][3]),
                                                    fy_pack(acc[h][4], acc[h][5]), fy_pack(acc[h][6], acc[h][7])));
    }
}

/* Among 32 groups from `first` on: those with units that nobody has claimed. A unit is a part of a token's columns. */
FY_DEVICE uint32_t fy_open_groups(const fy_gpu_call &c, int first, int units, int lane) {
    int left = units - (first + lane) * 32;
    uint32_t full = left >= 32 ? 0xffffffffu : (1u << (left > 0 ? left : 0)) - 1;
    bool open = left > 0 && fy_load_relaxed(&c.table.claimed[first + lane]) != full;
    return __ballot_sync(0xffffffffu, open);
}

/*
 * Up to FY_CLAIM units of the group that follow each other, whose tokens are complete and that this warp is the first
 * to claim, as a mask; one where less than `last` are left, so that all warps end together. `turn`: where to look
 * first, so that warps do not collide.
 */
FY_DEVICE uint32_t fy_claim(const fy_gpu_call &c, int group, int units, int parts, int last, int turn, int lane) {
    const uint32_t *arrived = fy_symmetric_at<const uint32_t>(c, c.rank, c.at.arrived);
    int unit = group * 32 + lane;
    bool complete = unit < units && fy_load_relaxed(arrived + unit / parts) == 0;
    bool taken = fy_load_relaxed(&c.table.claimed[group]) >> lane & 1;
    uint32_t ready = __ballot_sync(0xffffffffu, complete && !taken), before = 0;
    if (!ready) return 0;
    int chosen = (__ffs(__funnelshift_r(ready, ready, turn)) - 1 + turn) & 31;
    int left = units - (int)fy_load_relaxed(&c.table.state->claimed);
    uint32_t mask = ready & (((1u << (left < last ? 1 : FY_CLAIM)) - 1) << chosen);
    if (lane == 0) before = atomicOr(&c.table.claimed[group], mask);
    mask = __shfl_sync(0xffffffffu, mask & ~before, 0);
    if (mask >> lane & 1) (void)fy_load_acquire_sys(arrived + unit / parts);
    if (lane == 0 && mask) fy_add_relaxed_gpu(&c.table.state->claimed, __popc(mask));
    __syncwarp();
    return mask;
}

/* A wait that has found nothing for a while. True: the call is over. */
FY_DEVICE bool fy_sum_gives_up(const fy_gpu_call &c, uint64_t start, int units, int lane) {
    if (__any_sync(0xffffffffu, fy_device_aborted(c))) return true;
    if (!__any_sync(0xffffffffu, fy_now() - start > c.progress_timeout_ns)) return false;
    if (lane == 0) fy_device_raise(c, FY_AT_ARRIVED, -1, units, fy_load_relaxed(&c.table.state->claimed));
    return true;
}

/* The units `mine` of 32 from `first` on; parts of one token follow each other. */
template <int BATCH, int CHUNKS>
FY_DEVICE void fy_sum_units(const fy_gpu_call &c, int first, uint32_t mine, int parts, int lane) {
    int seen = -1;
    fy_sum_slots slots;
    for (; mine; mine &= mine - 1) {
        int unit = first + __ffs(mine) - 1, token = unit / parts, begin = unit % parts * (FY_SUM_COLUMNS / 8);
        if (token != seen) slots = fy_look_at_slots(c, token, lane);
        seen = token;
        fy_sum_token<BATCH, CHUNKS>(c, token, slots, begin, min(begin + FY_SUM_COLUMNS / 8, c.hidden / 8), lane);
    }
}

/*
 * BATCH rows of CHUNKS times 512 bytes are in flight at once, as the warp's registers allow. LAST: units at the end
 * that are claimed one by one.
 */
template <int BATCH, int CHUNKS, int LAST>
FY_DEVICE void fy_sum_role(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    int lane = threadIdx.x & 31, parts = (int)fy_divide_up(c.hidden, FY_SUM_COLUMNS);
    int units = state->tokens * parts, windows = (units + 1023) / 1024;
    int turn = threadIdx.x / 32 * 11 + blockIdx.x * 5, window = windows > 0 ? turn % windows : 0, idle = 0;
    uint64_t start = fy_now();
    fy_trace_begin(0, -1);
    while (__any_sync(0xffffffffu, (int)fy_load_relaxed(&state->claimed) < units)) {
        uint32_t open = fy_open_groups(c, window * 32, units, lane);
        uint32_t mine = 0;
        int group = 0;
        for (int tries = 0; open && !mine && tries < 2; tries++, turn += FY_CLAIM) {
            group = (__ffs(__funnelshift_r(open, open, turn & 31)) - 1 + turn) & 31;
            open &= ~(1u << group);
            group += window * 32;
            mine = fy_claim(c, group, units, parts, LAST, turn & 31, lane);
        }
        if (mine) {
            fy_trace_next(FY_MARK_TOKENS, -1);
            fy_sum_units<BATCH, CHUNKS>(c, group * 32, mine, parts, lane);
            fy_trace_next(FY_MARK_SUM, -1);
            idle = 0;
            start = fy_now();
            continue;
        }
        /* A few looks, then a rest: all warps together look everywhere often enough, and looking costs power. */
        window = window + 1 == windows ? 0 : window + 1;
        if (++idle % 64 == 0 && fy_sum_gives_up(c, start, units, lane)) return;
        __nanosleep(idle < 4 ? 256 : 4096);
    }
    fy_trace_end(0, FY_MARK_TOKENS);
}

#endif
