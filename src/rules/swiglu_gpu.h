/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU of one element on the GPU: the same function as fy_swiglu with the chip's own exponential and division,
 * because the polynomial of rules/exp.h costs more than the epilogue has. Bits repeat on one architecture; they are
 * not those of the CPU. Very negative g gives -0, as the limit does.
 */
#ifndef FERRY_RULES_SWIGLU_GPU_H
#define FERRY_RULES_SWIGLU_GPU_H

#include "rules/swiglu.h"

#ifdef __CUDACC__
static __device__ __forceinline__ float fy_swiglu_gpu(float g, float u, float limit)
{
    g = fy_clamp_gate(g, limit);
    u = fy_clamp_up(u, limit);
    return __fmul_rn(__fdividef(g, __fadd_rn(1.0f, __expf(-g))), u);
}
#endif

#endif
