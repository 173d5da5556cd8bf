/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dense mathematics in F32 on contiguous rows. Every element is one chain in ascending order of what it sums over
 * (within a row: 8 lanes, see lm/vector.h), so results do not depend on how many rows a call has.
 */
#ifndef FERRY_LM_DENSE_H
#define FERRY_LM_DENSE_H

#include <stdint.h>

/* c[i][j] = (add ? c[i][j] : 0), then += a(i, p) * b[p][j] for p = 0 .. depth-1; a(i, p) = a[i * a_row + p * a_column].
 */
void lm_matmul(float *c, int64_t c_row, const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row,
               int64_t rows, int64_t columns, int64_t depth, int add);

/* to[j][i] = from[i][j]; `from` has rows of from_row floats, `to` is contiguous. */
void lm_transpose(float *to, const float *from, int64_t from_row, int64_t rows, int64_t columns);

/* y = x * scale * gain with scale = 1 / sqrt(mean of x^2 + 1e-5), kept per row for the way back. */
void lm_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t width);
/* dx += gradient through the norm; dgain += sum over rows, ascending. */
void lm_norm_back(float *dx, float *dgain, const float *dy, const float *x, const float *scale, const float *gain,
                  int64_t rows, int64_t width);

/* row[0 .. n-1] becomes its softmax; row[n .. width-1] becomes 0. 1 <= n <= width. */
void lm_softmax(float *row, int64_t n, int64_t width);
/* dp becomes p * (dp - sum of p * dp), the gradient of what went into the softmax. */
void lm_softmax_back(float *dp, const float *p, int64_t width);

/*
 * Cross-entropy of `rows` rows of logits against `target`: returns the sum of -log p. With `scale` > 0 the logits
 * become their gradient times scale; with 0 they become probabilities.
 */
double lm_cross_entropy(float *logits, const unsigned char *target, int64_t rows, int64_t width, float scale);

void lm_round(uint16_t *to, const float *from, int64_t count);                 /* F32 -> BF16, to nearest even */
void lm_add_bf16(float *to, const float *a, const uint16_t *b, int64_t count); /* to = a + b; to may be a */
void lm_add(float *to, const float *from, int64_t count);                      /* to += from */
double lm_square_sum(const float *x, int64_t count);

#endif
