/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_matrix.cuh, of which sums want the rounding alone. */
#ifndef FERRY_CUDA_PRIM_MATRIX_CUH
#define FERRY_CUDA_PRIM_MATRIX_CUH

#include "cuda/prim_memory.cuh"
#include "rules/bf16.h"

FY_DEVICE uint32_t fy_pack(float low, float high) {
    return (uint32_t)fy_bf16_from_f32(low) | (uint32_t)fy_bf16_from_f32(high) << 16;
}

#endif
