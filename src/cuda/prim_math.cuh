/* SPDX-License-Identifier: Apache-2.0 */
/* The special-function unit: approximate, denormals as zero, the same bits every time. */
#ifndef FERRY_CUDA_PRIM_MATH_CUH
#define FERRY_CUDA_PRIM_MATH_CUH

static __device__ __forceinline__ float fy_exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float fy_reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
