/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host and the caller want to know of a call's rows: one block of the place launch.
 * Reads: counts and headers of all ranks.
 * Writes: the report page; most_blocks for the keep launch; the caller's expert_rows and load.
 * Waits on: nothing.  Publishes: nothing.
 * Registers: no limit worth stating.
 */
#ifndef FERRY_CUDA_ROLE_REPORT_CUH
#define FERRY_CUDA_ROLE_REPORT_CUH

#include "cuda/role_schedule.cuh"
#include "ferry/ferry.h"
#include "rules/load.h"

/* Rows of every expert over all ranks. */
FY_DEVICE int fy_rows_of_expert(const fy_gpu_call &c, const int32_t *counts, int expert) {
    int rows = 0;
    for (int s = 0; s < c.ranks; s++) rows += counts[(int64_t)s * c.experts + expert];
    return rows;
}

/*
 * Rows that come here, and the blocks of the rank that has most, which the keep launch looks at; for the host also rows
 * for peers' tokens, this rank's slots that have an expert, and table bytes from peers.
 */
FY_DEVICE void fy_count_rows(const fy_gpu_call &c, uint32_t call) {
    __shared__ int own_rows, remote_rows, own_slots, rank_blocks[FY_GPU_MAX_RANKS];
    if (threadIdx.x == 0) own_rows = remote_rows = own_slots = 0;
    if (threadIdx.x < FY_GPU_MAX_RANKS) rank_blocks[threadIdx.x] = 0;
    __syncthreads();
    const int32_t *counts = fy_counts_of(c, call, 0);
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x) {
        atomicAdd(&own_slots, counts[(int64_t)c.rank * c.experts + e]);
        atomicAdd(&rank_blocks[c.table.expert_rank[e]], (int)fy_blocks_of_rows(fy_rows_of_expert(c, counts, e)));
        if (c.table.expert_local[e] < 0) continue;
        for (int s = 0; s < c.ranks; s++)
            atomicAdd(s == c.rank ? &own_rows : &remote_rows, counts[(int64_t)s * c.experts + e]);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const fy_gpu_header *header = fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[call & 1]);
    int64_t bytes = 0;
    for (int s = 0; s < c.ranks; s++)
        if (s != c.rank)
            bytes += header[s].tokens * (int64_t)c.slots * (int64_t)sizeof(fy_gpu_slot) +
                     c.experts * (int64_t)sizeof(int32_t) + (int64_t)sizeof(fy_gpu_header);
    int rows = own_rows + remote_rows, most_blocks = 0;
    for (int r = 0; r < c.ranks; r++) most_blocks = max(most_blocks, rank_blocks[r]);
    c.table.state->most_blocks = most_blocks;
    volatile fy_gpu_page *page = c.page;
    c.table.state->rows = rows;
    page->rows = rows;
    page->routed_products = 3 * (int64_t)rows;
    page->remote_rows = remote_rows;
    page->sum_rows = own_slots + (c.shared > 0 ? header[c.rank].tokens : 0);
    page->table_bytes = bytes;
}

/* The greatest value and its lowest index over a block, as value << 32 | ~index. */
FY_DEVICE void fy_busiest(unsigned long long *most, int rows, int index) {
    if (rows > 0) atomicMax(most, (unsigned long long)rows << 32 | (uint32_t)~index);
}

/* What the caller wants to know about the load (rules/load.h in parallel). One block. */
FY_DEVICE void fy_report_load(const fy_gpu_call &c, uint32_t call) {
    __shared__ unsigned long long rank_rows[FY_GPU_MAX_RANKS], total, most;
    __shared__ int bins[FY_LOAD_BINS], empty;
    const int32_t *counts = fy_counts_of(c, call, 0);
    if (threadIdx.x < FY_GPU_MAX_RANKS) rank_rows[threadIdx.x] = 0;
    if (threadIdx.x < FY_LOAD_BINS) bins[threadIdx.x] = 0;
    if (threadIdx.x == 0) total = most = empty = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x) {
        int rows = fy_rows_of_expert(c, counts, e);
        if (c.expert_rows) c.expert_rows[e] = rows;
        atomicAdd(&rank_rows[c.table.expert_rank[e]], (unsigned long long)rows);
        atomicAdd(&total, (unsigned long long)rows);
        if (rows == 0) atomicAdd(&empty, 1);
        fy_busiest(&most, rows, e);
    }
    __syncthreads();
    if (!c.load) return;
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
        atomicAdd(&bins[fy_load_bin(fy_rows_of_expert(c, counts, e), (int64_t)total, c.experts)], 1);
    __syncthreads();
    if (threadIdx.x > 0) return;
    ferry_load l = {};
    l.rows = (int64_t)total;
    l.empty_experts = empty;
    if (most) l.busiest_expert = (int32_t) ~(uint32_t)most;
    for (int r = 0; r < c.ranks; r++) {
        if ((int64_t)rank_rows[r] <= l.busiest_rows) continue;
        l.busiest_rows = (int64_t)rank_rows[r];
        l.busiest_rank = r;
    }
    l.overload = fy_load_over(l.busiest_rows, l.rows, c.ranks);
    l.expert_overload = fy_load_over((int64_t)(most >> 32), l.rows, c.experts);
    for (int i = 0; i < FY_LOAD_BINS; i++) l.histogram[i] = bins[i];
    *c.load = l;
}

/* What the host and the caller want to know: likewise. */
FY_DEVICE void fy_report_role(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    if (threadIdx.x == 0) {
        volatile fy_gpu_page *page = c.page;
        page->backward = 0;
        page->recomputed_rows = 0;
        page->shared_products = 3 * (int64_t)state->tokens;
        page->tokens = state->tokens;
        page->macrobatches = state->macrobatches;
        page->blocks = state->blocks;
    }
    fy_count_rows(c, state->calls);
    if (c.load || c.expert_rows) fy_report_load(c, state->calls);
}

#endif
