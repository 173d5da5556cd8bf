/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product. Every element is one chain of products and sums, each rounded, in ascending order of depth:
 * which tile computes it, and how wide that tile's vectors are, changes nothing. So each instruction set has tiles of
 * its own vector width and all give the same bits.
 */
#include "lm/dense.h"

typedef struct product {
    float *c;
    const float *a, *b;
    int64_t c_row, a_row, a_column, b_row, rows, columns, depth;
    int add;
} product;

typedef float vector4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float vector8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float vector16 __attribute__((vector_size(64), aligned(4), may_alias));

/* ROWS x (VECTORS * lanes) elements at (i, j), kept in registers over the whole depth. */
#define TILE(name, target, vector, ROWS, VECTORS)                                                                      \
    target static inline __attribute__((always_inline)) void name(const product *t, int64_t i, int64_t j) {            \
        enum { LANES = sizeof(vector) / sizeof(float) };                                                               \
        vector sum[ROWS][VECTORS];                                                                                     \
        float *c = t->c + i * t->c_row + j;                                                                            \
        const float *a = t->a + i * t->a_row, *b = t->b + j;                                                           \
        for (int r = 0; r < ROWS; r++) {                                                                               \
            for (int v = 0; v < VECTORS; v++)                                                                          \
                sum[r][v] = t->add ? *(const vector *)(c + r * t->c_row + v * LANES) : (vector){0};                    \
        }                                                                                                              \
        for (int64_t p = 0; p < t->depth; p++, a += t->a_column, b += t->b_row) {                                      \
            for (int r = 0; r < ROWS; r++) {                                                                           \
                for (int v = 0; v < VECTORS; v++) sum[r][v] += a[r * t->a_row] * *(const vector *)(b + v * LANES);     \
            }                                                                                                          \
        }                                                                                                              \
        for (int r = 0; r < ROWS; r++) {                                                                               \
            for (int v = 0; v < VECTORS; v++) *(vector *)(c + r * t->c_row + v * LANES) = sum[r][v];                   \
        }                                                                                                              \
    }

/* One block of columns for all rows, so that this block of b stays in the first cache. */
#define COLUMNS(block, single)                                                                                         \
    do {                                                                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + 4 <= t->rows; i += 4) block(t, i, j);                                                               \
        for (; i < t->rows; i++) single(t, i, j);                                                                      \
    } while (0)

/* The product with vectors of type `wide`; what is left of the columns goes to `narrow` ones and single elements. */
#define PRODUCT(isa, target, wide, narrow)                                                                             \
    TILE(isa##_4x2, target, wide, 4, 2)                                                                                \
    TILE(isa##_1x2, target, wide, 1, 2)                                                                                \
    TILE(isa##_4x1, target, narrow, 4, 1)                                                                              \
    TILE(isa##_1x1, target, narrow, 1, 1)                                                                              \
    TILE(isa##_4x1_single, target, float, 4, 1)                                                                        \
    TILE(isa##_1x1_single, target, float, 1, 1)                                                                        \
    target static void isa##_product(const product *t) {                                                               \
        enum { WIDE = 2 * sizeof(wide) / sizeof(float), NARROW = sizeof(narrow) / sizeof(float) };                     \
        int64_t j = 0;                                                                                                 \
        for (; j + WIDE <= t->columns; j += WIDE) COLUMNS(isa##_4x2, isa##_1x2);                                       \
        for (; j + NARROW <= t->columns; j += NARROW) COLUMNS(isa##_4x1, isa##_1x1);                                   \
        for (; j < t->columns; j++) COLUMNS(isa##_4x1_single, isa##_1x1_single);                                       \
    }

PRODUCT(plain, , vector4, vector4)
#if defined(__x86_64__)
PRODUCT(avx2, __attribute__((target("avx2"))), vector8, vector8)
PRODUCT(avx512, __attribute__((target("avx512f"))), vector16, vector8)
#endif

void lm_matmul(float *c, int64_t c_row, const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row,
               int64_t rows, int64_t columns, int64_t depth, int add) {
    product t = {c, a, b, c_row, a_row, a_column, b_row, rows, columns, depth, add};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        avx512_product(&t);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        avx2_product(&t);
        return;
    }
#endif
    plain_product(&t);
}
