/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulator fragments to shared memory: four 8 x 8 matrices of BF16 at once. */
#ifndef FERRY_CUDA_PRIM_MATRIX_CUH
#define FERRY_CUDA_PRIM_MATRIX_CUH

#include "cuda/prim_barrier.cuh"

#include <cuda_bf16.h>

FY_DEVICE void fy_store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* Two values rounded to BF16, the first one low. */
FY_DEVICE uint32_t fy_pack(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&v;
}

#endif
