/* SPDX-License-Identifier: Apache-2.0 */
/* Dense mathematics: the matrix product, RMS norm, softmax and cross-entropy. */
#include "lm/dense.h"

#include "lm/vector.h"

#include <math.h>

/* ---- Matrix product ---- */

typedef struct product {
    float *c;
    const float *a, *b;
    int64_t c_row, a_row, a_column, b_row, depth;
    int add;
} product;

/* ROWS x (VECTORS * LANES) elements at (i, j), kept in registers over the whole depth. */
#define TILE(name, vector, LANES, ROWS, VECTORS)                                                                  \
    LM_INLINE void name(const product *t, int64_t i, int64_t j) {                                                 \
        vector sum[ROWS][VECTORS];                                                                                \
        float *c = t->c + i * t->c_row + j;                                                                       \
        const float *a = t->a + i * t->a_row, *b = t->b + j;                                                      \
        for (int r = 0; r < ROWS; r++) {                                                                          \
            for (int v = 0; v < VECTORS; v++)                                                                     \
                sum[r][v] = t->add ? *(const vector *)(c + r * t->c_row + v * LANES) : (vector){0};               \
        }                                                                                                         \
        for (int64_t p = 0; p < t->depth; p++, a += t->a_column, b += t->b_row) {                                 \
            for (int r = 0; r < ROWS; r++) {                                                                      \
                for (int v = 0; v < VECTORS; v++)                                                                 \
                    sum[r][v] += a[r * t->a_row] * *(const vector *)(b + v * LANES);                              \
            }                                                                                                     \
        }                                                                                                         \
        for (int r = 0; r < ROWS; r++) {                                                                          \
            for (int v = 0; v < VECTORS; v++) *(vector *)(c + r * t->c_row + v * LANES) = sum[r][v];              \
        }                                                                                                         \
    }

TILE(tile_4x32, lm_v16, 16, 4, 2)
TILE(tile_4x16, lm_v16, 16, 4, 1)
TILE(tile_4x8, lm_v8, 8, 4, 1)
TILE(tile_1x32, lm_v16, 16, 1, 2)
TILE(tile_1x16, lm_v16, 16, 1, 1)
TILE(tile_1x8, lm_v8, 8, 1, 1)
TILE(tile_1x1, float, 1, 1, 1)

/* One column block for all rows, so that the block of b stays in the first cache. */
#define COLUMN(block, single)                                                                                     \
    do {                                                                                                          \
        int64_t i = 0;                                                                                            \
        for (; i + 4 <= rows; i += 4) block(&t, i, j);                                                            \
        for (; i < rows; i++) single(&t, i, j);                                                                   \
    } while (0)

LM_CLONES void lm_matmul(float *c, int64_t c_row, const float *a, int64_t a_row, int64_t a_column, const float *b,
                         int64_t b_row, int64_t rows, int64_t columns, int64_t depth, int add) {
    product t = {c, a, b, c_row, a_row, a_column, b_row, depth, add};
    int64_t j = 0;
    for (; j + 32 <= columns; j += 32) COLUMN(tile_4x32, tile_1x32);
    for (; j + 16 <= columns; j += 16) COLUMN(tile_4x16, tile_1x16);
    for (; j + 8 <= columns; j += 8) COLUMN(tile_4x8, tile_1x8);
    for (; j < columns; j++) {
        for (int64_t i = 0; i < rows; i++) tile_1x1(&t, i, j);
    }
}

void lm_transpose(float *to, const float *from, int64_t from_row, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * from_row + j];
    }
}

/* ---- Sums over a row ---- */

LM_INLINE float dot(const float *a, const float *b, int64_t n) {
    lm_v16 sum = {0}, x, y;
    for (int64_t i = 0; i < n; i += 16) {
        LM_LOAD(x, a + i, n - i, 0.0f);
        LM_LOAD(y, b + i, n - i, 0.0f);
        sum += x * y;
    }
    return lm_fold_sum(&sum);
}

double lm_square_sum(const float *x, int64_t count) {
    double lane[8] = {0};
    for (int64_t i = 0; i < count; i++) lane[i % 8] += (double)x[i] * (double)x[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* ---- RMS norm ---- */

LM_CLONES void lm_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, x += width, y += width) {
        float s = 1.0f / sqrtf(dot(x, x, width) / (float)width + 1e-5f);
        for (int64_t j = 0; j < width; j++) y[j] = x[j] * s * gain[j];
        scale[i] = s;
    }
}

LM_CLONES void lm_norm_back(float *dx, float *dgain, const float *dy, const float *x, const float *scale,
                            const float *gain, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, x += width, dy += width, dx += width) {
        float s = scale[i];
        lm_v16 sum = {0}, a, b, g;
        for (int64_t j = 0; j < width; j += 16) {
            LM_LOAD(a, x + j, width - j, 0.0f);
            LM_LOAD(b, dy + j, width - j, 0.0f);
            LM_LOAD(g, gain + j, width - j, 0.0f);
            sum += a * (b * g);
        }
        float along = lm_fold_sum(&sum) * s * s / (float)width;
        for (int64_t j = 0; j < width; j++) {
            dx[j] += s * (dy[j] * gain[j] - x[j] * along);
            dgain[j] += dy[j] * x[j] * s;
        }
    }
}

/* ---- Softmax ---- */

/* Turns the row into exponentials of the distance to its largest value, which it returns; *sum is their sum. */
LM_INLINE float exponentials(float *row, int64_t n, float *sum) {
    lm_v16 top = (lm_v16){0} + row[0], total = {0}, x;
    for (int64_t i = 0; i < n; i += 16) {
        LM_LOAD(x, row + i, n - i, row[0]);
        lm_raise(&top, x);
    }
    float largest = lm_fold_max(&top);
    for (int64_t i = 0; i < n; i += 16) {
        LM_LOAD(x, row + i, n - i, 0.0f);
        x = x - largest;
        lm_exp(&x);
        LM_STORE(row + i, x, n - i);
        lm_v16 kept;
        LM_LOAD(kept, row + i, n - i, 0.0f);
        total += kept;
    }
    *sum = lm_fold_sum(&total);
    return largest;
}

LM_CLONES void lm_softmax(float *row, int64_t n, int64_t width) {
    float sum;
    exponentials(row, n, &sum);
    float scale = 1.0f / sum;
    for (int64_t i = 0; i < n; i++) row[i] *= scale;
    for (int64_t i = n; i < width; i++) row[i] = 0.0f;
}

LM_CLONES void lm_softmax_back(float *dp, const float *p, int64_t width) {
    float along = dot(dp, p, width);
    for (int64_t i = 0; i < width; i++) dp[i] = p[i] * (dp[i] - along);
}

LM_CLONES double lm_cross_entropy(float *logits, const unsigned char *target, int64_t rows, int64_t width,
                                  float scale) {
    double loss = 0;
    for (int64_t i = 0; i < rows; i++, logits += width) {
        float sum, wanted = logits[target[i]];
        float largest = exponentials(logits, width, &sum);
        loss += log((double)sum) + (double)largest - (double)wanted;
        float factor = scale > 0 ? scale / sum : 1.0f / sum;
        for (int64_t j = 0; j < width; j++) logits[j] *= factor;
        if (scale > 0) logits[target[i]] -= scale;
    }
    return loss;
}

/* ---- Conversions ---- */

LM_CLONES void lm_round(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = lm_bf16(from[i]);
}

LM_CLONES void lm_add_bf16(float *to, const float *a, const uint16_t *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = a[i] + lm_widen(b[i]);
}
