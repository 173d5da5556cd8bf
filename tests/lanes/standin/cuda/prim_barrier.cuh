/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_barrier.cuh: nobody here waits at barriers in shared memory. */
#ifndef FERRY_CUDA_PRIM_BARRIER_CUH
#define FERRY_CUDA_PRIM_BARRIER_CUH

#include "cuda/prim_memory.cuh"

FY_DEVICE void fy_barrier_init(uint64_t *, uint32_t) {}

#endif
