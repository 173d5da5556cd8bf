/* SPDX-License-Identifier: Apache-2.0 */
/* Dense mathematics of rows: RMS norm, softmax, cross-entropy, conversions. The matrix product is in matmul.c. */
#include "lm/dense.h"

#include "lm/vector.h"

#include <math.h>

void lm_transpose(float *to, const float *from, int64_t from_row, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * from_row + j];
    }
}

/* ---- Sums over a row ---- */

LM_INLINE float dot(const float *a, const float *b, int64_t n) {
    lm_v8 sum = {0}, x, y;
    for (int64_t i = 0; i < n; i += 8) {
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
        lm_v8 sum = {0}, a, b, g;
        for (int64_t j = 0; j < width; j += 8) {
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
    lm_v8 top = (lm_v8){0} + row[0], total = {0}, x;
    for (int64_t i = 0; i < n; i += 8) {
        LM_LOAD(x, row + i, n - i, row[0]);
        lm_raise(&top, x);
    }
    float largest = lm_fold_max(&top);
    for (int64_t i = 0; i < n; i += 8) {
        LM_LOAD(x, row + i, n - i, 0.0f);
        x = x - largest;
        lm_exp(&x);
        LM_STORE(row + i, x, n - i);
        lm_v8 kept;
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

/* ---- Conversions and sums of arrays ---- */

LM_CLONES void lm_add(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

LM_CLONES void lm_round(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = lm_bf16(from[i]);
}

LM_CLONES void lm_add_bf16(float *to, const float *a, const uint16_t *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = a[i] + lm_widen(b[i]);
}
