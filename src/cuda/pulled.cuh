/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the pulls of both directions share: what precedes their signals, and zeros in the rows between an expert's
 * last row and the end of its block. Weight gradients contract over those; elsewhere they decide nothing, but what they
 * hold is multiplied, and zeros take less power.
 */
#ifndef FERRY_CUDA_PULLED_CUH
#define FERRY_CUDA_PULLED_CUH

#include "cuda/block.cuh"

/* What the warp has stored is there for whoever reads with the copy engine once he has seen what it adds after this. */
FY_DEVICE void fy_stored_before(void) {
    fy_fence_async_global();
    __syncwarp();
    fy_fence_gpu();
}

/* `rows` rows from `row`, by a warp. */
FY_DEVICE void fy_zero_rows(uint16_t *row, int rows, int row16, int lane) {
#pragma unroll 1
    for (int i = lane; i < rows * row16; i += 32) __stcg((uint4 *)row + i, make_uint4(0, 0, 0, 0));
}

#endif
