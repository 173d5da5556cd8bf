/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU of two neighbouring elements on the GPU: the function of rules/swiglu.h with the chip's own exponential and
 * one reciprocal for both, because the special-function unit is what the epilogue waits for: 1/a = b / (ab). Bits
 * repeat on one architecture; they are not those of the CPU. A neighbour's NaN spreads to its pair, within one token's
 * row. Below g = -43 the sigmoid stays at 2^-62, so that ab is finite: at most 2e-17 away from the truth for each unit
 * of u.
 */
#ifndef FERRY_CUDA_SWIGLU_CUH
#define FERRY_CUDA_SWIGLU_CUH

#include "cuda/prim_math.cuh"
#include "rules/swiglu.h"

static __device__ __forceinline__ void fy_swiglu_pair(float &g0, float &g1, float u0, float u1) {
    const float log2_e = 1.44269504f, most = 62.0f;
    /* A NaN must pass the bound: min() of the hardware would drop it. */
    float x0 = __fmul_rn(g0, -log2_e), x1 = __fmul_rn(g1, -log2_e);
    float a = __fadd_rn(1.0f, fy_exp2_approx(x0 > most ? most : x0));
    float b = __fadd_rn(1.0f, fy_exp2_approx(x1 > most ? most : x1));
    float r = fy_reciprocal_approx(__fmul_rn(a, b));
    g0 = __fmul_rn(__fmul_rn(g0, u0), __fmul_rn(b, r));
    g1 = __fmul_rn(__fmul_rn(g1, u1), __fmul_rn(a, r));
}

#endif
