/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers in shared memory, named barriers, and the split of registers between warpgroups. */
#ifndef FERRY_CUDA_PRIM_BARRIER_CUH
#define FERRY_CUDA_PRIM_BARRIER_CUH

#include "cuda/prim_memory.cuh"

FY_DEVICE uint32_t fy_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

FY_DEVICE void fy_barrier_init(uint64_t *b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(fy_shared_address(b)), "r"(arrivals) : "memory");
}

/* Makes initialised barriers known to the copy engine. */
FY_DEVICE void fy_barrier_init_fence(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* Whether the phase of this parity has completed, without waiting. */
FY_DEVICE bool fy_barrier_test(uint64_t *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(fy_shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

/* `at`: the barrier's shared address. */
FY_DEVICE void fy_barrier_wait_at(uint32_t at, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
}

FY_DEVICE void fy_barrier_wait(uint64_t *b, uint32_t parity) { fy_barrier_wait_at(fy_shared_address(b), parity); }

FY_DEVICE void fy_barrier_arrive_at(uint32_t at) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
}

FY_DEVICE void fy_barrier_arrive(uint64_t *b) { fy_barrier_arrive_at(fy_shared_address(b)); }

/* Arrives, and the phase also waits for `bytes` bytes of the copy engine. */
FY_DEVICE void fy_barrier_arrive_expecting(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(fy_shared_address(b)), "r"(bytes)
                 : "memory");
}

/* The 128 threads of a warpgroup; numbers 1 to 4, 0 is __syncthreads. */
FY_DEVICE void fy_group_sync(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

/* Arrives without waiting: of its 128 threads one warp waits (fy_group_sync) for what the other three have done. */
FY_DEVICE void fy_group_arrive(int number) { asm volatile("bar.arrive %0, 128;" ::"r"(number) : "memory"); }

template <int COUNT>
FY_DEVICE void fy_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
FY_DEVICE void fy_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
