/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for src/cuda/prim_memory.cuh: every access of memory that blocks share is one step of the scheduler, before
 * which any other worker may run. Memory is in order: what is too weak an order for a GPU is not seen here.
 */
#ifndef FERRY_CUDA_PRIM_MEMORY_CUH
#define FERRY_CUDA_PRIM_MEMORY_CUH

#include "cuda_words.h"
#include "scheduler.h"

#define FY_DEVICE [[maybe_unused]] static inline

FY_DEVICE uint32_t fy_load_relaxed(const uint32_t *p) {
    step();
    return *p;
}
FY_DEVICE uint32_t fy_load_acquire_gpu(const uint32_t *p) { return fy_load_relaxed(p); }
FY_DEVICE uint32_t fy_load_acquire_sys(const uint32_t *p) { return fy_load_relaxed(p); }
FY_DEVICE void fy_store_release_sys(uint32_t *p, uint32_t v) {
    step();
    *p = v;
}
FY_DEVICE void fy_store_relaxed(uint32_t *p, uint32_t v) { fy_store_release_sys(p, v); }
FY_DEVICE uint32_t fy_fetch_add_acq_rel_gpu(uint32_t *p, uint32_t v) {
    step();
    *p += v;
    return *p - v;
}
FY_DEVICE void fy_add_release_gpu(uint32_t *p, uint32_t v) { fy_fetch_add_acq_rel_gpu(p, v); }
FY_DEVICE void fy_add_relaxed_gpu(uint32_t *p, uint32_t v) { fy_fetch_add_acq_rel_gpu(p, v); }
FY_DEVICE void fy_add_relaxed_sys(uint32_t *p, uint32_t v) { fy_fetch_add_acq_rel_gpu(p, v); }

/* Takes a ticket. Some cases hold a worker up right here, between its look at the other side and its own addition. */
FY_DEVICE uint32_t atomicAdd(uint32_t *p, uint32_t v) {
    hold_up();
    return fy_fetch_add_acq_rel_gpu(p, v);
}

FY_DEVICE void fy_fence_block() {}
FY_DEVICE void fy_fence_gpu() {}
FY_DEVICE void fy_fence_sys() {}
FY_DEVICE void fy_fence_async_global() {}
FY_DEVICE void fy_fence_async_shared() {}
FY_DEVICE void fy_fence_map(const void *) {}

template <class T>
FY_DEVICE T fy_uniform(T value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

FY_DEVICE uint32_t fy_multiprocessor() { return (uint32_t)current_block(); } /* one block on each */

/* Whoever keeps to a time looks a few times. */
FY_DEVICE uint32_t fy_clock() {
    static uint32_t clock;
    return clock += 300;
}

FY_DEVICE uint64_t fy_now() { return 0; }

#endif
