/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of complete tokens. Nobody knows beforehand which token's last row comes when, so a few warps look again and
 * again, each at a share of the tokens, and list those whose rows have all come. Sums take tokens from that list, in
 * the order in which they became complete, and look nowhere else.
 * Reads: arrived[token].  Writes: arrived[token], so that it is listed once.
 * Waits on: arrived[token] = 0 of all tokens of a share.
 * Publishes: complete[n] = token + 1, for the n-th that became complete.
 * Registers: within the producer warpgroup's 120.
 */
#ifndef FERRY_CUDA_ROLE_COLLECT_CUH
#define FERRY_CUDA_ROLE_COLLECT_CUH

#include "cuda/block.cuh"
#include "cuda/role_schedule.cuh"
#include "cuda/trace.cuh"

enum {
    FY_LOOKS = 8, /* of a lane, on their way at once */
    FY_LOOK_TOKENS = 32 * FY_LOOKS,
    FY_SHARE_BLOCKS = 4, /* the least blocks for one warp that looks */
    FY_LOOK_REST_NS = 256
};

/* Lists tokens first + 32 i + lane for the bits i of `mine`; what was stored for them is then known to whoever reads
 * the list. */
FY_DEVICE int fy_list_complete(const fy_gpu_call &c, uint32_t *arrived, int first, uint32_t mine, int lane) {
    if (!__any_sync(0xffffffffu, mine != 0)) return 0;
    fy_fence_sys();
    int count = __popc(mine), sum = count, at = 0;
    for (int d = 1; d < 32; d *= 2) {
        int from = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += from;
    }
    if (lane == 31) at = (int)atomicAdd(&c.table.state->listed, (uint32_t)sum);
    at = __shfl_sync(0xffffffffu, at, 31) + sum - count;
    for (; mine; mine &= mine - 1, at++) {
        uint32_t token = (uint32_t)(first + 32 * (__ffs(mine) - 1) + lane);
        fy_store_relaxed(arrived + token, 1u);
        fy_store_relaxed(c.table.complete + at, token + 1);
    }
    return __shfl_sync(0xffffffffu, sum, 31);
}

/* Tokens [first, end). False: the call is over. */
FY_DEVICE bool fy_collect_share(const fy_gpu_call &c, int first, int end, int lane) {
    uint32_t *arrived = fy_symmetric_at<uint32_t>(c, c.rank, c.at.arrived);
    uint64_t start = fy_now();
    int listed = 0;
    for (uint32_t turn = 1;; turn++) {
        int before = listed;
        for (int t = first; t < end; t += FY_LOOK_TOKENS) {
            uint32_t seen[FY_LOOKS], mine = 0;
#pragma unroll
            for (int i = 0; i < FY_LOOKS; i++)
                seen[i] = t + 32 * i + lane < end ? fy_load_relaxed(arrived + t + 32 * i + lane) : 1;
#pragma unroll
            for (int i = 0; i < FY_LOOKS; i++) mine |= (seen[i] == 0) << i;
            listed += fy_list_complete(c, arrived, t, mine, lane);
        }
        if (listed == end - first) return true;
        if (listed > before) start = fy_now();
        if (turn % 64 == 0) {
            if (__any_sync(0xffffffffu, fy_device_aborted(c))) return false;
            if (__any_sync(0xffffffffu, fy_now() - start > c.progress_timeout_ns)) {
                if (lane == 0) fy_device_raise(c, FY_AT_ARRIVED, -1, end - first, listed);
                return false;
            }
        }
        __nanosleep(FY_LOOK_REST_NS);
    }
}

FY_DEVICE void fy_collect_role(const fy_gpu_call &c) {
    fy_gpu_state *state = c.table.state;
    int lane = threadIdx.x & 31, tokens = state->tokens, share;
    int each = fy_parts(fy_parts(tokens, max(gridDim.x / FY_SHARE_BLOCKS, 1u)), FY_LOOK_TOKENS) * FY_LOOK_TOKENS;
    int shares = each > 0 ? fy_parts(tokens, each) : 0;
    while ((share = fy_take(&state->take_share, shares, lane)) >= 0) {
        fy_trace_begin(0, -1);
        bool all = fy_collect_share(c, share * each, min((share + 1) * each, tokens), lane);
        fy_trace_end(0, FY_MARK_TOKENS);
        if (!all) return;
    }
}

#endif
