/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting on the device. Every wait for another block or another rank goes through fy_await, which tests the
 * abort words and a deadline; waits inside a block (shared-memory barriers) end because the thread that feeds them
 * waits here before a tile, never within one, and then finishes the tile or announces the end.
 */
#ifndef FERRY_CUDA_WAIT_CUH
#define FERRY_CUDA_WAIT_CUH

#include "cuda/call.h"
#include "cuda/prim_memory.cuh"

/*
 * Once a fault was raised here, by a peer, or by this rank's host: all of them write this device's own memory. (Polling
 * a word of host memory instead makes every other access of the device crawl.)
 */
FY_DEVICE bool fy_device_aborted(const fy_gpu_call &c) {
    return fy_load_relaxed((const uint32_t *)(c.peer[c.rank] + c.at.abort)) != 0;
}

/* The first fault of this rank is recorded for the host; every rank's waits end. */
static __device__ __forceinline__ void fy_device_raise(const fy_gpu_call &c, int site, int awaited, uint64_t expected,
                                                       uint64_t seen) {
    uint32_t *mine = (uint32_t *)(c.peer[c.rank] + c.at.abort);
    if (atomicCAS_system(mine, 0u, 1u) == 0u) {
        volatile fy_gpu_page *page = c.page;
        page->site = site;
        page->awaited_rank = awaited;
        page->expected = (int64_t)expected;
        page->seen = (int64_t)seen;
        fy_fence_sys();
        page->fault = 1;
        for (int r = 0; r < c.ranks; r++)
            if (r != c.rank) fy_store_release_sys((uint32_t *)(c.peer[r] + c.at.abort), 1u);
    }
}

template <bool SYSTEM>
FY_DEVICE uint32_t fy_load_acquire(const uint32_t *flag) {
    return SYSTEM ? fy_load_acquire_sys(flag) : fy_load_acquire_gpu(flag);
}

/* Whether a wait since `start` is given up: the call is over, or its time is, which is a fault. */
static __device__ __forceinline__ bool fy_gives_up(const fy_gpu_call &c, int site, int awaited, uint32_t target,
                                                   uint32_t seen, uint64_t start, uint64_t timeout_ns) {
    if (fy_device_aborted(c)) return true;
    if (fy_now() - start <= timeout_ns) return false;
    fy_device_raise(c, site, awaited, target, seen);
    return true;
}

/* Polls without order, so that turns do not empty the first-level cache, `rest_ns` apart after the first ones; the
 * caller's acquire comes when it is time. */
static __device__ __forceinline__ bool fy_wait_slowly(const fy_gpu_call &c, const uint32_t *flag, uint32_t target,
                                                      int site, int awaited, uint64_t timeout_ns, unsigned rest_ns) {
    uint64_t start = fy_now();
    for (uint32_t turn = 1;; turn++) {
        uint32_t seen = fy_load_relaxed(flag);
        if (seen >= target) return true;
        if (turn % 256 == 0 && fy_gives_up(c, site, awaited, target, seen, start, timeout_ns)) return false;
        __nanosleep(turn < 64 ? 32 : rest_ns);
    }
}

/* Until *flag >= target. False: the call is over, leave. SYSTEM: the writer may be another device. */
template <bool SYSTEM>
FY_DEVICE bool fy_await(const fy_gpu_call &c, const uint32_t *flag, uint32_t target, int site, int awaited,
                        uint64_t timeout_ns, unsigned rest_ns = 256) {
    if (fy_load_acquire<SYSTEM>(flag) >= target) return true;
    if (!fy_wait_slowly(c, flag, target, site, awaited, timeout_ns, rest_ns)) return false;
    (void)fy_load_acquire<SYSTEM>(flag);
    return true;
}

#endif
