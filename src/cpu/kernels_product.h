/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product over the vector operations of one instruction set. For every FY_BLOCK_DEPTH of k: all rows of A are
 * packed into strips of up to FY_STRIP_ROWS rows, then each pair of FY_LANES columns of B is packed into a panel that
 * stays in the first-level cache while every strip of A passes over it. A strip holds, for each k, FY_LANES F32 values.
 */
#ifndef FERRY_CPU_KERNELS_PRODUCT_H
#define FERRY_CPU_KERNELS_PRODUCT_H

#include "cpu/kernels_tables.h"
#include "rules/bf16.h"

enum { FY_PANEL_VECTORS = 2, FY_STRIP_FLOATS = FY_BLOCK_DEPTH * FY_LANES };
_Static_assert((FY_TILE_ROWS + FY_STRIP_ROWS - 1) / FY_STRIP_ROWS * FY_LANES <= FY_A_LANES, "strips of A fit");
_Static_assert(FY_PANEL_VECTORS *FY_LANES <= FY_B_LANES, "the panel of B fits");

/* What a strip's missing rows are packed from. */
static const uint16_t zeros[FY_BLOCK_DEPTH];

/* k contiguous: transposes. Only valid elements are read: a short last piece goes through a copy. */
static void pack_along_k(float *strip, const uint16_t *data, int64_t i_stride, int count, int depth) {
    const uint16_t *row[FY_LANES];
    for (int lane = 0; lane < FY_LANES; lane++) row[lane] = lane < count ? data + lane * i_stride : zeros;
    int k = 0;
    for (; k + FY_TRANSPOSE_DEPTH <= depth; k += FY_TRANSPOSE_DEPTH) {
        transpose_rows(strip + k * FY_LANES, row, FY_TRANSPOSE_DEPTH);
        for (int lane = 0; lane < FY_LANES; lane++) row[lane] += FY_TRANSPOSE_DEPTH;
    }
    if (k == depth) return;
    uint16_t rest[FY_LANES][FY_TRANSPOSE_DEPTH] = {{0}};
    for (int lane = 0; lane < count; lane++) memcpy(rest[lane], row[lane], sizeof(uint16_t) * (size_t)(depth - k));
    for (int lane = 0; lane < FY_LANES; lane++) row[lane] = rest[lane];
    transpose_rows(strip + k * FY_LANES, row, depth - k);
}

/* i contiguous: widens. */
static void pack_along_i(float *strip, const uint16_t *data, int64_t k_stride, int count, int depth) {
    if (count == FY_LANES)
        for (int k = 0; k < depth; k++) vector_store(strip + k * FY_LANES, vector_widen(data + k * k_stride));
    else
        for (int k = 0; k < depth; k++)
            vector_store(strip + k * FY_LANES, vector_widen_part(data + k * k_stride, count));
}

/* strip[k * FY_LANES + lane] = operand(i + lane, k0 + k), 0 where i + lane >= end. */
static void pack_strip(float *strip, fy_operand operand, int i, int end, int64_t k0, int depth) {
    int count = end - i < FY_LANES ? end - i : FY_LANES;
    const uint16_t *data = operand.data + i * operand.i_stride + k0 * operand.k_stride;
    if (operand.k_stride == 1)
        pack_along_k(strip, data, operand.i_stride, count, depth);
    else
        pack_along_i(strip, data, operand.k_stride, count, depth);
}

/* One strip of A times `vectors` strips of B; `last` columns are in the last vector. Constant `rows` and `vectors`
 * make all accumulators registers. */
static inline __attribute__((always_inline)) void multiply(const int rows, const int vectors, float *acc,
                                                           int64_t stride, int last, const float *a, const float *b,
                                                           int depth, int add) {
    fy_vector sum[FY_STRIP_ROWS][FY_PANEL_VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[r][v] = !add              ? vector_zero()
                        : v < vectors - 1 ? vector_load(acc + r * stride + v * FY_LANES)
                                          : vector_load_part(acc + r * stride + v * FY_LANES, last);
    for (int k = 0; k < depth; k++) {
        fy_vector column[FY_PANEL_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) column[v] = vector_load(b + v * FY_STRIP_FLOATS + k * FY_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            fy_vector element = vector_all(a[k * FY_LANES + r]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] = vector_fma(element, column[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            fy_vector done = vector_one_nan(sum[r][v]);
            if (v < vectors - 1)
                vector_store(acc + r * stride + v * FY_LANES, done);
            else
                vector_store_part(acc + r * stride + v * FY_LANES, done, last);
        }
}

static void multiply_strip(int rows, int vectors, float *acc, int64_t stride, int last, const float *a, const float *b,
                           int depth, int add) {
#define FY_CASE(number)                                                                                                \
    case number:                                                                                                       \
        if (vectors == 2)                                                                                              \
            multiply(number, 2, acc, stride, last, a, b, depth, add);                                                  \
        else                                                                                                           \
            multiply(number, 1, acc, stride, last, a, b, depth, add);                                                  \
        break;
    /* clang-format off */
    switch (rows) {
        FY_CASE(1) FY_CASE(2) FY_CASE(3)
#if FY_STRIP_ROWS >= 6
        FY_CASE(4) FY_CASE(5) FY_CASE(6)
#endif
#if FY_STRIP_ROWS >= 14
        FY_CASE(7) FY_CASE(8) FY_CASE(9) FY_CASE(10) FY_CASE(11) FY_CASE(12) FY_CASE(13) FY_CASE(14)
#endif
    }
    /* clang-format on */
#undef FY_CASE
}

/* Depth of one round of packing over all strips. An operand that is contiguous along i goes a few k at a time, so that
 * its cache lines, which two neighbouring strips share, are still there for the second one. */
enum { FY_ROUND_DEPTH = 16 };
static int pack_depth(fy_operand operand, int block) {
    return operand.k_stride == 1 || block < FY_ROUND_DEPTH ? block : FY_ROUND_DEPTH;
}

static void product(float *acc, int64_t acc_stride, int rows, int columns, int64_t depth, int add, fy_operand a,
                    fy_operand b, void *scratch) {
    if (depth <= 0 && !add)
        for (int row = 0; row < rows; row++) memset(acc + row * acc_stride, 0, sizeof(float) * (size_t)columns);
    int strips = (rows + FY_STRIP_ROWS - 1) / FY_STRIP_ROWS;
    float *packed_a = scratch;
    float *packed_b = packed_a + FY_A_LANES * FY_BLOCK_DEPTH;
    for (int64_t k = 0; k < depth; k += FY_BLOCK_DEPTH, add = 1) {
        int block = depth - k < FY_BLOCK_DEPTH ? (int)(depth - k) : FY_BLOCK_DEPTH;
        /* Strip s is of rows [rows * s / strips, rows * (s + 1) / strips): nearly equal, no short last one. Its other
         * lanes hold rows of the next strip, where there is one: filled faster than left out, and never used. */
        int step_a = pack_depth(a, block), step_b = pack_depth(b, block);
        for (int d = 0; d < block; d += step_a)
            for (int s = 0; s < strips; s++)
                pack_strip(packed_a + s * FY_STRIP_FLOATS + d * FY_LANES, a, rows * s / strips, rows, k + d,
                           block - d < step_a ? block - d : step_a);
        for (int column = 0; column < columns; column += FY_PANEL_VECTORS * FY_LANES) {
            int width = columns - column < FY_PANEL_VECTORS * FY_LANES ? columns - column : FY_PANEL_VECTORS * FY_LANES;
            int vectors = (width + FY_LANES - 1) / FY_LANES;
            int last = width - (vectors - 1) * FY_LANES;
            for (int d = 0; d < block; d += step_b)
                for (int v = 0; v < vectors; v++)
                    pack_strip(packed_b + v * FY_STRIP_FLOATS + d * FY_LANES, b, column + v * FY_LANES, columns, k + d,
                               block - d < step_b ? block - d : step_b);
            for (int s = 0; s < strips; s++) {
                int first = rows * s / strips, end = rows * (s + 1) / strips;
                multiply_strip(end - first, vectors, acc + first * acc_stride + column, acc_stride, last,
                               packed_a + s * FY_STRIP_FLOATS, packed_b, block, add);
            }
        }
    }
}

#endif
