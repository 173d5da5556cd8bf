/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wait launch of the schedule: one block, which publishes what the launches before it have made, waits for all
 * peers' and gives every expert its blocks and row tiles.
 * Reads: peers' published counts and headers.
 * Writes: local tables of experts and macrobatches, the call's state; bad ids and too many tokens to the report page.
 * Waits on: flag[source] of every rank (not where there is one rank).
 * Publishes: counts, header, then flag, into every peer (likewise).
 * Registers: no limit worth stating.
 */
#ifndef FERRY_CUDA_ROLE_WAIT_CUH
#define FERRY_CUDA_ROLE_WAIT_CUH

#include "cuda/role_schedule.cuh"
#include "ferry/ferry.h"
#include "rules/tile.h"

/* One block, when all have ranked and staged: into every peer's memory counts, header, then the flag. The rank launch
 * has left the counts in this rank's own; one rank alone needs no flag, for the same block goes on. */
FY_DEVICE void fy_publish_role(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    uint32_t call = state->calls + 1;
    int parity = call & 1;
    const int32_t *own = fy_counts_of(c, call, c.rank);
    for (int r = 0; r < c.ranks; r++) {
        if (r == c.rank) continue;
        int32_t *counts = fy_symmetric_at<int32_t>(c, r, c.at.counts[parity]) + (int64_t)c.rank * c.experts;
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x) counts[e] = own[e];
    }
    if (threadIdx.x < c.ranks) {
        fy_gpu_header h;
        h.tokens = *c.tokens;
        h.bad_count = (int32_t)__ldcg(&state->bad_count);
        h.bad_slot = (int32_t)__ldcg(&state->bad_slot);
        h.spare = 0;
        h.bad_id = h.bad_count ? fy_raw_id(c, h.bad_slot) : 0;
        fy_symmetric_at<fy_gpu_header>(c, threadIdx.x, c.at.header[parity])[c.rank] = h;
    }
    if (c.ranks > 1) fy_fence_sys();
    __syncthreads();
    if (c.ranks > 1 && threadIdx.x < c.ranks)
        fy_store_release_sys(fy_symmetric_at<uint32_t>(c, threadIdx.x, c.at.flag) + c.rank, call);
}

/* Exclusive sums over the items of a block of 1,024 threads, one pass of 1,024 items; `carry` goes on. */
FY_DEVICE int fy_scan_block(int value, int *warp_sums, int *carry) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, sum = value;
    for (int d = 1; d < 32; d *= 2) {
        int from = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += from;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int w = warp_sums[lane], s = w;
        for (int d = 1; d < 32; d *= 2) {
            int from = __shfl_up_sync(0xffffffffu, s, d);
            if (lane >= d) s += from;
        }
        warp_sums[lane] = s - w;
        if (lane == 31) warp_sums[32] = s;
    }
    __syncthreads();
    int result = *carry + warp_sums[warp] + sum - value;
    int all = warp_sums[32];
    __syncthreads();
    if (threadIdx.x == 0) *carry += all;
    __syncthreads();
    return result;
}

/* Reports bad ids and too many tokens of any rank to the host; true when the call does nothing. */
FY_DEVICE bool fy_check_headers(const fy_gpu_call &c, uint32_t call) {
    const fy_gpu_header *header = fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[call & 1]);
    volatile fy_gpu_page *page = c.page;
    int64_t bad = 0;
    int first_bad = -1, too_many = -1;
    for (int r = 0; r < c.ranks; r++) {
        fy_gpu_header h = header[r];
        bad += h.bad_count;
        if (h.bad_count && first_bad < 0) first_bad = r;
        if ((h.tokens < 0 || h.tokens > c.max_tokens) && too_many < 0) too_many = r;
    }
    if (too_many >= 0 || bad) {
        int r = too_many >= 0 ? too_many : first_bad;
        page->report_status = too_many >= 0 ? FERRY_E_TOO_MANY_TOKENS : FERRY_E_BAD_ID;
        page->report_rank = r;
        page->report_count = too_many >= 0 ? header[r].tokens : bad;
        page->report_slot = too_many >= 0 ? -1 : header[r].bad_slot;
        page->report_id = too_many >= 0 ? 0 : header[r].bad_id;
        fy_fence_sys();
        page->report = call;
    }
    return too_many >= 0;
}

/* One block of 1,024 threads, that of fy_publish_role. */
FY_DEVICE void fy_wait_role(const fy_gpu_call &c) {
    __shared__ int warp_sums[33], carry_blocks, carry_tiles, failed;
    fy_gpu_state *state = c.table.state;
    uint32_t call = state->calls + 1;
    if (threadIdx.x == 0) carry_blocks = carry_tiles = failed = 0;
    fy_trace_launch_begin(c, FY_LAUNCH_WAIT);
    __syncthreads();
    if (c.ranks > 1 && threadIdx.x < c.ranks) {
        const uint32_t *flag = fy_symmetric_at<uint32_t>(c, c.rank, c.at.flag) + threadIdx.x;
        if (!fy_await<true>(c, flag, call, FY_AT_ENTER, threadIdx.x, c.enter_timeout_ns)) failed = 1;
    }
    __syncthreads();
    /* Only now: blocks that have begun hold a part of the GPU, and no wait for peers may. */
    cudaTriggerProgrammaticLaunchCompletion();
    fy_trace_launch_end(c, FY_LAUNCH_WAIT);
    fy_trace_launch_begin(c, FY_LAUNCH_LAY);
    if (threadIdx.x == 0) {
        if (!failed && fy_check_headers(c, call)) failed = 1;
        state->skip = failed;
        if (c.ring_call) c.ring_call[0] = c.ring_call[1] = 0;
        state->calls = call;
        state->tokens = failed ? 0 : *c.tokens;
        state->take_product[0] = state->take_product[FY_LINE_WORDS] = 0;
        state->take_pull = state->take_head = state->take_sum = state->take_share = state->listed = 0;
        state->bad_count = 0;
        state->finished = state->pulls = state->remote_pulls = 0;
        state->bad_slot = 0xffffffffu;
    }
    __syncthreads();
    if (failed) return;
    const int32_t *counts = fy_counts_of(c, call, 0);
    for (int l0 = 0; l0 < c.local_experts; l0 += blockDim.x) {
        int l = l0 + threadIdx.x, rows = 0;
        if (l < c.local_experts)
            for (int s = 0; s < c.ranks; s++) rows += counts[(int64_t)s * c.experts + c.table.local_expert[l]];
        int blocks = (int)fy_blocks_of_rows(rows);
        int first = fy_scan_block(blocks, warp_sums, &carry_blocks);
        int tiles = (int)fy_tiles_between(first, first + blocks, c.ring_blocks);
        int first_tile = fy_scan_block(tiles, warp_sums, &carry_tiles);
        if (l < c.local_experts) {
            c.table.first_block[l] = first;
            c.table.first_tile[l] = first_tile;
            c.table.expert_rows[l] = rows;
            int base = first * FY_BLOCK_ROWS;
            for (int s = 0; s < c.ranks; s++) {
                c.table.base[(int64_t)l * c.ranks + s] = base;
                base += counts[(int64_t)s * c.experts + c.table.local_expert[l]];
            }
        }
    }
    int blocks = carry_blocks, tiles = carry_tiles, macros = (int)fy_divide_up(blocks, c.ring_blocks);
    if (threadIdx.x == 0) {
        c.table.first_block[c.local_experts] = blocks;
        c.table.first_tile[c.local_experts] = tiles;
        c.table.macro_tile[0] = 0;
        c.table.macro_tile[macros] = tiles;
        state->blocks = blocks;
        state->tiles = tiles;
        state->macrobatches = macros;
    }
    __syncthreads();
    for (int m = 1 + threadIdx.x; m < macros; m += blockDim.x) {
        int block = m * c.ring_blocks;
        int e = fy_find(c.table.first_block, c.local_experts, block);
        c.table.macro_tile[m] =
            c.table.first_tile[e] + (int)fy_tiles_between(c.table.first_block[e], block, c.ring_blocks);
    }
    fy_trace_launch_end(c, FY_LAUNCH_LAY);
}

#endif
