/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_matrix.cuh, of which sums want the rounding, and nobody calls the rest. */
#ifndef FERRY_CUDA_PRIM_MATRIX_CUH
#define FERRY_CUDA_PRIM_MATRIX_CUH

#include "cuda/prim_barrier.cuh"
#include "rules/bf16.h"

void fy_store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d);

FY_DEVICE uint32_t fy_pack(float low, float high) {
    return (uint32_t)fy_bf16_from_f32(low) | (uint32_t)fy_bf16_from_f32(high) << 16;
}

#endif
