/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule, in four small launches.
 *   count   counts the experts of each chunk of slots, and bad ids; clears arrived[] and complete[]
 *   rank    gives every slot its expert and its position among this rank's slots of the same one; beside it stages x
 *           where others read it
 *   wait    one block (role_wait.cuh): publishes to all peers, waits for all of them, gives every expert its blocks and
 *           row tiles
 *   place   row <-> slot tables of the rows that come here (role_place.cuh). Beside it some blocks lay row tiles and
 *           clear the counters of the compute launch, one lists the product tickets (role_list.cuh), and one reports to
 *           the host and, where the caller wants them, writes rows of experts and load statistics (role_report.cuh)
 * Here are the first two, which look at this rank alone.
 * Reads: the caller's N, x, ids.
 * Writes: symmetric tables, histograms of chunks.
 * Waits on: rank for the launch before it, as late as it can.
 * Publishes: nothing; the wait launch does.
 * Registers: no limit worth stating; blocks of these launches never fill the device.
 */
#ifndef FERRY_CUDA_ROLE_SCHEDULE_CUH
#define FERRY_CUDA_ROLE_SCHEDULE_CUH

#include "cuda/kind.cuh"
#include "cuda/trace.cuh"
#include "rules/place.h"

/* Tokens that the call works on: none when too many were passed. */
FY_DEVICE int fy_call_tokens(const fy_gpu_call &c) {
    int n = *c.tokens;
    return n < 0 || n > c.max_tokens ? 0 : n;
}

template <class T>
FY_DEVICE T *fy_symmetric_at(const fy_gpu_call &c, int rank, uint64_t offset) {
    return (T *)(c.peer[rank] + offset);
}

FY_DEVICE int64_t fy_raw_id(const fy_gpu_call &c, int64_t slot) {
    return c.ids_are_64 ? ((const int64_t *)c.ids)[slot] : (int64_t)((const int32_t *)c.ids)[slot];
}

/* Until the launch before this one has ended; the one behind may begin, and wait for this one's end. */
FY_DEVICE void fy_await_launch(void) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
}

/* Block `block` of `blocks` that copy tokens to where peers read them. */
FY_DEVICE void fy_stage_tokens(const fy_gpu_call &c, int64_t block, int64_t blocks) {
    int row16 = c.hidden / 8;
    uint4 *to = fy_symmetric_at<uint4>(c, c.rank, c.at.x);
    int64_t all = (int64_t)fy_call_tokens(c) * row16;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < all; i += blocks * blockDim.x) {
        int64_t token = i / row16, part = i - token * row16;
        to[i] = __ldcs((const uint4 *)(c.x + token * c.x_stride) + part);
    }
}

FY_DEVICE void fy_count_role(const fy_gpu_call &c, int32_t *histogram) {
    fy_gpu_state *state = c.table.state;
    int n = fy_call_tokens(c);
    int64_t all = (int64_t)n * c.slots;
    for (int64_t chunk = blockIdx.x; chunk * FY_CHUNK < all; chunk += gridDim.x) {
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x) histogram[e] = 0;
        __syncthreads();
        int64_t slot = chunk * FY_CHUNK + threadIdx.x;
        if (slot < all) {
            int bad;
            int expert = fy_clean_id(fy_raw_id(c, slot), c.experts, &bad);
            if (expert >= 0) atomicAdd(&histogram[expert], 1);
            if (bad) {
                atomicAdd(&state->bad_count, 1u);
                atomicMin(&state->bad_slot, (uint32_t)slot);
            }
        }
        __syncthreads();
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
            c.table.histogram[chunk * c.experts + e] = histogram[e];
        __syncthreads();
    }
    uint32_t *arrived = fy_symmetric_at<uint32_t>(c, c.rank, c.at.arrived);
    for (int64_t t = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; t < n; t += (int64_t)gridDim.x * blockDim.x) {
        uint32_t awaited = c.shared > 0;
        for (int k = 0; k < c.slots; k++) {
            int bad;
            awaited += fy_clean_id(fy_raw_id(c, t * c.slots + k), c.experts, &bad) >= 0;
        }
        arrived[t] = 0u - awaited;
        c.table.complete[t] = 0;
    }
}

/* A rank's counts of experts in this rank's table [ranks][experts]; `call`: whose. */
FY_DEVICE int32_t *fy_counts_of(const fy_gpu_call &c, uint32_t call, int rank) {
    return fy_symmetric_at<int32_t>(c, c.rank, c.at.counts[call & 1]) + (int64_t)rank * c.experts;
}

/* An expert's rows in a chunk: those of warp w in byte w. */
struct alignas(16) fy_warp_rows {
    uint32_t word[FY_CHUNK / 32 / 4];
};

static_assert(sizeof(fy_warp_rows) == 16, "a byte for each warp, and one access");

/* Those of warps below `warp`. */
FY_DEVICE int fy_rows_before(const fy_warp_rows &rows, int warp) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < FY_CHUNK / 32 / 4; i++) {
        int bytes = min(max(warp - 4 * i, 0), 4);
        uint32_t word = bytes == 4 ? rows.word[i] : rows.word[i] & ((1u << 8 * bytes) - 1);
        sum += (word & 0xff00ffu) + (word >> 8 & 0xff00ffu);
    }
    return (int)((sum & 0xffffu) + (sum >> 16));
}

/* Shared memory of a block that ranks. */
FY_RULE size_t fy_rank_bytes(int experts) { return experts * (sizeof(fy_warp_rows) + sizeof(int32_t)); }

/* Rows of expert e in chunks first, first + step .. below `end`, many looks on their way at once, the last ones too. */
FY_DEVICE int fy_rows_of_chunks(const fy_gpu_call &c, int e, int64_t first, int64_t end, int step) {
    const int looks = 16;
    int sum = 0;
#pragma unroll 1
    for (; first < end; first += looks * step) {
        int rows[looks];
#pragma unroll
        for (int i = 0; i < looks; i++)
            rows[i] = first + i * step < end ? c.table.histogram[(first + i * step) * c.experts + e] : 0;
#pragma unroll
        for (int i = 0; i < looks; i++) sum += rows[i];
    }
    return sum;
}

/* The first `blocks` blocks rank, one chunk each; those behind them stage. `shared`: fy_rank_bytes. */
FY_DEVICE void fy_rank_role(const fy_gpu_call &c, int blocks, uint8_t *shared) {
    uint32_t call = c.table.state->calls + 1;
    int n = fy_call_tokens(c);
    int64_t all = (int64_t)n * c.slots, chunk = blockIdx.x;
    int64_t chunks = all == 0 ? 1 : fy_divide_up(all, FY_CHUNK);
    if (chunk >= blocks) {
        fy_await_launch();
        return fy_stage_tokens(c, chunk - blocks, gridDim.x - blocks);
    }
    if (chunk >= chunks) return; /* the first block never does: so this launch ends behind the one before it */
    fy_warp_rows *rows = (fy_warp_rows *)shared;
    int32_t *before = (int32_t *)(rows + c.experts); /* this chunk's first position of each expert */
    int64_t slot = chunk * FY_CHUNK + threadIdx.x;
    int bad, expert = slot < all ? fy_clean_id(fy_raw_id(c, slot), c.experts, &bad) : -1, warp = threadIdx.x / 32;
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x) {
        before[e] = 0;
        rows[e] = {};
    }
    __syncthreads();
    uint32_t same = __match_any_sync(0xffffffffu, expert), earlier = same & ((1u << (threadIdx.x & 31)) - 1);
    if (expert >= 0 && !earlier) ((uint8_t *)&rows[expert])[warp] = (uint8_t)__popc(same);
    fy_await_launch();
    /* Threads that have no expert of their own share the chunks of one. */
    int parts = c.experts >= (int)blockDim.x ? 1 : blockDim.x / c.experts;
    for (int i = threadIdx.x; i < c.experts * parts; i += blockDim.x) {
        int e = i % c.experts, sum = fy_rows_of_chunks(c, e, i / c.experts, chunk, parts);
        if (parts > 1)
            atomicAdd(&before[e], sum);
        else
            before[e] = sum;
    }
    __syncthreads();
    if (slot < all) {
        fy_gpu_slot s = {expert, 0};
        if (expert >= 0) s.position = before[expert] + fy_rows_before(rows[expert], warp) + __popc(earlier);
        fy_symmetric_at<fy_gpu_slot>(c, c.rank, c.at.slots[call & 1])[slot] = s;
    }
    if (chunk == chunks - 1)
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
            fy_counts_of(c, call, c.rank)[e] = before[e] + fy_rows_before(rows[e], FY_CHUNK / 32);
}

/* The item of ascending `first` [items + 1] whose range holds `value`. */
FY_DEVICE int fy_find(const int32_t *first, int items, int value) {
    int low = 0, high = items;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
