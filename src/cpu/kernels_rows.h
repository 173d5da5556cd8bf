/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise row functions: plain loops over the rules, which the compiler turns into vector code of each instruction
 * set. One operation per rounding, so the bits do not depend on the width.
 */
#ifndef FERRY_CPU_KERNELS_ROWS_H
#define FERRY_CPU_KERNELS_ROWS_H

#include "rules/bf16.h"
#include "rules/swiglu.h"

static void round_row(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = fy_bf16_from_f32(from[i]);
}

static void swiglu_row(uint16_t *restrict h, uint16_t *restrict g_out, uint16_t *restrict u_out,
                       const float *restrict g, const float *restrict u, int64_t n, float limit) {
    limit = fy_swiglu_limit(limit);
    for (int64_t i = 0; i < n; i++) h[i] = fy_bf16_from_f32(fy_swiglu(g[i], u[i], limit));
    if (!g_out) return;
    for (int64_t i = 0; i < n; i++) g_out[i] = fy_save_gate(g[i], limit);
    for (int64_t i = 0; i < n; i++) u_out[i] = fy_save_up(u[i], limit);
}

/* The order of the sum of dh * h': lane i mod 16, each ascending, then halves onto each other. */
enum { FY_SUM_LANES = 16, FY_SUM_CHUNK = 16 * FY_SUM_LANES };

static float sum_of_lanes(float *lanes) {
    for (int width = FY_SUM_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return fy_one_nan(lanes[0]);
}

static float swiglu_grad_row(uint16_t *restrict dg, uint16_t *restrict du, uint16_t *restrict wh,
                             const float *restrict dh, const uint16_t *restrict g, const uint16_t *restrict u,
                             int64_t n, float weight, float limit) {
    float lanes[FY_SUM_LANES] = {0};
    limit = fy_swiglu_limit(limit);
    for (int64_t start = 0; start < n; start += FY_SUM_CHUNK) {
        float products[FY_SUM_CHUNK];
        int64_t count = n - start < FY_SUM_CHUNK ? n - start : FY_SUM_CHUNK;
        for (int64_t i = 0; i < count; i++) {
            fy_swiglu_gradient grad = fy_swiglu_grad(fy_bf16_to_f32(g[start + i]), fy_bf16_to_f32(u[start + i]),
                                                     weight * dh[start + i], limit);
            dg[start + i] = fy_bf16_from_f32(grad.dg);
            du[start + i] = fy_bf16_from_f32(grad.du);
            wh[start + i] = fy_bf16_from_f32(weight * grad.h);
            products[i] = dh[start + i] * grad.h;
        }
        for (int64_t i = 0; i < count; i += FY_SUM_LANES) {
            int64_t width = count - i < FY_SUM_LANES ? count - i : FY_SUM_LANES;
            for (int64_t lane = 0; lane < width; lane++) lanes[lane] += products[i + lane];
        }
    }
    return sum_of_lanes(lanes);
}

static void weighted_add_row(float *restrict acc, const uint16_t *restrict y, int64_t n, float weight) {
    for (int64_t i = 0; i < n; i++) acc[i] = fy_one_nan(acc[i] + weight * fy_bf16_to_f32(y[i]));
}

static void widen_row(float *restrict acc, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] = fy_bf16_to_f32(from[i]);
}

static void add_row(float *restrict acc, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] = fy_one_nan(acc[i] + fy_bf16_to_f32(from[i]));
}

#endif
