/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor copy engine: boxes from global to shared memory and back. */
#ifndef FERRY_CUDA_PRIM_COPY_CUH
#define FERRY_CUDA_PRIM_COPY_CUH

#include "cuda/prim_barrier.cuh"

#include <cuda.h>

FY_DEVICE void fy_load_box2(void *to, const CUtensorMap *map, uint64_t *full, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(fy_shared_address(to)),
                 "l"(map), "r"(fy_shared_address(full)), "r"(column), "r"(row)
                 : "memory");
}

FY_DEVICE void fy_load_box3(void *to, const CUtensorMap *map, uint64_t *full, int column, int row, int matrix) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];" ::"r"(fy_shared_address(to)),
                 "l"(map), "r"(fy_shared_address(full)), "r"(column), "r"(row), "r"(matrix)
                 : "memory");
}

/*
 * Stores of one thread form groups in the order of its commits. `from`: a shared address. The engine is told through
 * scalar registers: uniform operands (fy_uniform) get there in a few clocks, those of one lane in more than a hundred.
 */
FY_DEVICE void fy_store_box2(const CUtensorMap *map, uint32_t from, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(column), "r"(row)
                 : "memory");
}

FY_DEVICE void fy_store_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups still read shared memory. */
template <int PENDING>
FY_DEVICE void fy_store_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* Until all of this thread's groups are written. */
FY_DEVICE void fy_store_wait_written(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif
