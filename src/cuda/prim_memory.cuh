/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, additions and fences with a stated memory order. */
#ifndef FERRY_CUDA_PRIM_MEMORY_CUH
#define FERRY_CUDA_PRIM_MEMORY_CUH

#include <stdint.h>

#define FY_DEVICE static __device__ __forceinline__

FY_DEVICE uint32_t fy_load_relaxed(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

FY_DEVICE uint32_t fy_load_acquire_gpu(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

FY_DEVICE uint32_t fy_load_acquire_sys(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

FY_DEVICE void fy_store_release_sys(uint32_t *p, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FY_DEVICE void fy_store_relaxed(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FY_DEVICE void fy_add_release_gpu(uint32_t *p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FY_DEVICE void fy_add_relaxed_gpu(uint32_t *p, uint32_t v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FY_DEVICE void fy_add_relaxed_sys(uint32_t *p, uint32_t v) {
    asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FY_DEVICE uint32_t fy_fetch_add_acq_rel_gpu(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

FY_DEVICE uint32_t fy_fetch_add_release_gpu(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

FY_DEVICE void fy_fence_block(void) { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

FY_DEVICE void fy_fence_gpu(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

FY_DEVICE void fy_fence_sys(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/*
 * Between ordinary accesses and those of the copy engine: to global memory, to shared memory. One instruction for both
 * would wait for all stores of the multiprocessor.
 */
FY_DEVICE void fy_fence_async_global(void) { asm volatile("fence.proxy.async.global;" ::: "memory"); }

FY_DEVICE void fy_fence_async_shared(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Before a tensor map that ordinary stores wrote is used. */
FY_DEVICE void fy_fence_map(const void *map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* The same value in every lane, and the compiler knows: what follows from it is reckoned once, in scalar registers. */
FY_DEVICE uint32_t fy_uniform(uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

FY_DEVICE int fy_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

template <class T>
FY_DEVICE T *fy_uniform(T *p) {
    uint64_t v = (uint64_t)p;
    return (T *)((uint64_t)fy_uniform((uint32_t)(v >> 32)) << 32 | fy_uniform((uint32_t)v));
}

FY_DEVICE uint32_t fy_multiprocessor(void) {
    uint32_t number;
    asm("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

/* Of the multiprocessor; only differences mean something. */
FY_DEVICE uint32_t fy_clock(void) {
    uint32_t t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}

/* Nanoseconds of the device's global timer; ticks are coarse. */
FY_DEVICE uint64_t fy_now(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

#endif
