/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for src/cuda/prim_barrier.cuh: a barrier in shared memory as the hardware's, with a phase that ends when all
 * arrivals and all announced bytes have come. Written in the 8 bytes that the device code gives it.
 */
#ifndef FERRY_CUDA_PRIM_BARRIER_CUH
#define FERRY_CUDA_PRIM_BARRIER_CUH

#include "cuda/prim_memory.cuh"

struct barrier {
    uint8_t arrivals, awaited, phase;
    int32_t bytes; /* announced and not here yet; below 0: here and not announced yet */
};
static_assert(sizeof(barrier) == sizeof(uint64_t), "it lies where the hardware's lies");

FY_DEVICE barrier &barrier_at(uint64_t *b) { return *(barrier *)b; }

FY_DEVICE void barrier_turn(barrier &b) {
    if (b.awaited > 0 || b.bytes != 0) return;
    b.phase ^= 1;
    b.awaited = b.arrivals;
}
FY_DEVICE void barrier_arrive(uint64_t *at, uint32_t bytes) {
    step();
    barrier &b = barrier_at(at);
    if (b.awaited == 0) fail("more arrivals at a barrier than its phase has");
    b.bytes += (int32_t)bytes;
    b.awaited--;
    barrier_turn(b);
}
/* The copy engine's part. */
FY_DEVICE void barrier_deliver(uint64_t *at, int bytes) {
    barrier &b = barrier_at(at);
    b.bytes -= bytes;
    barrier_turn(b);
}
FY_DEVICE bool barrier_is_over(const void *at, uint32_t parity) { return ((const barrier *)at)->phase != parity; }

FY_DEVICE void fy_barrier_init(uint64_t *at, uint32_t arrivals) {
    barrier_at(at) = {(uint8_t)arrivals, (uint8_t)arrivals, 0, 0};
}
FY_DEVICE bool fy_barrier_test(uint64_t *at, uint32_t parity) {
    step();
    return barrier_is_over(at, parity);
}
FY_DEVICE void fy_barrier_wait(uint64_t *at, uint32_t parity) {
    step();
    wait_until(barrier_is_over, at, parity, "a barrier of its block");
}
FY_DEVICE void fy_barrier_arrive(uint64_t *at) { barrier_arrive(at, 0); }
FY_DEVICE void fy_barrier_arrive_expecting(uint64_t *at, uint32_t bytes) { barrier_arrive(at, bytes); }

#endif
