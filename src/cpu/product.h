/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product kernel of the CPU backend, in three builds of one source (portable, AVX2 + FMA, AVX-512), all with the
 * same bits. Every element of the result is one chain of fused multiply-adds over ascending k, from 0 or from the
 * value that is there; it depends on its own row of A and row of B alone. (BF16 x BF16 is exact in F32, so the
 * portable build gets fused rounding from a double sum.) Denormals are kept. A computed result that is not a number
 * is always the one NaN of rules/bf16.h: which operand's payload survives differs between instruction sets.
 */
#ifndef FERRY_CPU_PRODUCT_H
#define FERRY_CPU_PRODUCT_H

#include "ferry/ferry.h"

#include <stddef.h>
#include <stdint.h>

/* BF16 operand: element (i, k) is at data[i * i_stride + k * k_stride]; one of the two strides is 1. */
typedef struct fy_operand {
    const uint16_t *data;
    int64_t i_stride, k_stride;
} fy_operand;

/* The largest tile a call may ask for: scratch of a worker is planned for it. */
enum { FY_TILE_ROWS = 256, FY_TILE_COLUMNS = 256 };

/* acc[m * acc_stride + n] = (add ? acc : 0) then += A(m, k) * B(n, k) for k = 0 .. depth-1 ascending.
 * rows <= FY_TILE_ROWS, columns <= FY_TILE_COLUMNS, any depth >= 0 (0: acc is unchanged, or zeros). acc_stride >=
 * columns; nothing between the rows of acc is touched, and only the elements of A and B that were named are read.
 * `scratch`: fy_product_scratch_bytes() bytes, aligned to 64, of this worker. */
typedef void fy_product_function(float *acc, int64_t acc_stride, int rows, int columns, int64_t depth, int add,
                                 fy_operand a, fy_operand b, void *scratch);

/* Element-wise row work that follows a product, built for each instruction set from one source (same bits). */
typedef struct fy_kernels {
    ferry_isa isa;
    const char *name; /* "portable", "avx2", "avx512" */
    fy_product_function *product;

    /* n values: F32 -> BF16, to nearest even, NaN kept. */
    void (*round_row)(uint16_t *to, const float *from, int64_t n);
    /* n F32 accumulators of gate and up -> h = silu(clamp g) * clamp u, rounded once; g_out and u_out (either both or
     * none) get the unclamped values in BF16, rounded without crossing a clamp bound. limit 0: no clamp. */
    void (*swiglu_row)(uint16_t *h, uint16_t *g_out, uint16_t *u_out, const float *g, const float *u, int64_t n,
                       float limit);
    /* n F32 values of dh (unweighted) with saved g, u and the slot's weight: dg, du = bf16 of w * dh through SwiGLU,
     * wh = bf16(w * h'). Returns sum of dh * h' in F32: 16 lanes (lane = i mod 16), each ascending, then lanes
     * added by halves (8+8, 4+4, 2+2, 1+1). */
    float (*swiglu_grad_row)(uint16_t *dg, uint16_t *du, uint16_t *wh, const float *dh, const uint16_t *g,
                             const uint16_t *u, int64_t n, float weight, float limit);
    /* acc[n] += weight * y[n], product and sum each rounded to F32. */
    void (*weighted_add_row)(float *acc, const uint16_t *y, int64_t n, float weight);
    /* acc[n] = BF16 -> F32, and its plain sum. */
    void (*widen_row)(float *acc, const uint16_t *from, int64_t n);
    /* acc[n] += from[n]. */
    void (*add_row)(float *acc, const uint16_t *from, int64_t n);
} fy_kernels;

size_t fy_product_scratch_bytes(void);
/* E_UNSUPPORTED when the processor lacks what was asked for; AUTO takes the widest. */
ferry_status fy_kernels_select(ferry_isa isa, const fy_kernels **out);

#endif
