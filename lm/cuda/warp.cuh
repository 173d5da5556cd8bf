/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the language model share: folds of a warp in one fixed order, numbers of blocks, loading. */
#ifndef FERRY_LM_CUDA_WARP_CUH
#define FERRY_LM_CUDA_WARP_CUH

#include "lm/cuda/kernels.h"

#define LM_DEVICE static __device__ __forceinline__

enum { LM_WARP = 32 };
static const unsigned LM_EVERY_LANE = 0xffffffffu;

/* All lanes get the sum (the largest). */
LM_DEVICE float lm_warp_sum(float x) {
    for (int step = LM_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(LM_EVERY_LANE, x, step);
    return x;
}

LM_DEVICE float lm_warp_max(float x) {
    for (int step = LM_WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(LM_EVERY_LANE, x, step));
    return x;
}

static inline unsigned lm_blocks(int64_t count, int64_t per_block) {
    return (unsigned)((count + per_block - 1) / per_block);
}

template <typename... Kernels>
static cudaError_t lm_load(Kernels... kernels) {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
    for (const void *kernel : {(const void *)kernels...}) {
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
    }
    return error;
}

#endif
