/* SPDX-License-Identifier: Apache-2.0 */
/* Causal multi-head attention with rotary positions, forward and backward, one sequence at a time. */
#include "lm/attention.h"

#include "lm/dense.h"

#include <math.h>
#include <stdlib.h>

int lm_attention_init(lm_attention *attention, int64_t length, int64_t hidden, int64_t heads) {
    int64_t depth = hidden / heads, half = depth / 2;
    *attention = (lm_attention){.length = length, .hidden = hidden, .heads = heads};
    attention->cosine = malloc((size_t)(length * half) * sizeof(float));
    attention->sine = malloc((size_t)(length * half) * sizeof(float));
    attention->scratch = malloc((size_t)(length * length + length * depth) * sizeof(float));
    if (!attention->cosine || !attention->sine || !attention->scratch) {
        lm_attention_free(attention);
        return -1;
    }
    for (int64_t t = 0; t < length; t++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)t * pow(10000.0, -(double)i / (double)half);
            attention->cosine[t * half + i] = (float)cos(angle);
            attention->sine[t * half + i] = (float)sin(angle);
        }
    }
    return 0;
}

void lm_attention_free(lm_attention *attention) {
    free(attention->cosine);
    free(attention->sine);
    free(attention->scratch);
    *attention = (lm_attention){0};
}

/* Turns the pairs (i, i + D/2) of every query and key by their position's angle; direction -1 turns back. */
static void turn(const lm_attention *attention, float *qkv, float direction) {
    int64_t depth = attention->hidden / attention->heads, half = depth / 2;
    for (int64_t t = 0; t < attention->length; t++, qkv += 3 * attention->hidden) {
        const float *cosine = attention->cosine + t * half, *sine = attention->sine + t * half;
        for (int64_t head = 0; head < 2 * attention->heads; head++) {
            float *low = qkv + head * depth, *high = low + half;
            for (int64_t i = 0; i < half; i++) {
                float a = low[i], b = high[i], s = sine[i] * direction;
                low[i] = a * cosine[i] - b * s;
                high[i] = b * cosine[i] + a * s;
            }
        }
    }
}

void lm_attention_forward(const lm_attention *attention, float *out, float *p, float *qkv) {
    int64_t length = attention->length, hidden = attention->hidden, depth = hidden / attention->heads;
    int64_t row = 3 * hidden;
    float *turned = attention->scratch, scale = 1.0f / sqrtf((float)depth);
    turn(attention, qkv, 1.0f);
    for (int64_t head = 0; head < attention->heads; head++, p += length * length) {
        const float *q = qkv + head * depth, *k = q + hidden, *v = k + hidden;
        lm_transpose(turned, k, row, length, depth);
        lm_matmul(p, length, q, row, 1, turned, length, length, length, depth, 0);
        for (int64_t t = 0; t < length; t++) {
            for (int64_t s = 0; s <= t; s++) p[t * length + s] *= scale;
            lm_softmax(p + t * length, t + 1, length);
        }
        lm_matmul(out + head * depth, hidden, p, length, 1, v, row, length, depth, length, 0);
    }
}

void lm_attention_backward(const lm_attention *attention, float *dqkv, const float *dout, const float *p,
                           const float *qkv) {
    int64_t length = attention->length, hidden = attention->hidden, depth = hidden / attention->heads;
    int64_t row = 3 * hidden;
    float *turned = attention->scratch, *ds = turned + length * depth, scale = 1.0f / sqrtf((float)depth);
    for (int64_t head = 0; head < attention->heads; head++, p += length * length) {
        const float *q = qkv + head * depth, *k = q + hidden, *v = k + hidden, *dy = dout + head * depth;
        float *dq = dqkv + head * depth, *dk = dq + hidden, *dv = dk + hidden;
        lm_matmul(dv, row, p, 1, length, dy, hidden, length, depth, length, 0);
        lm_transpose(turned, v, row, length, depth);
        lm_matmul(ds, length, dy, hidden, 1, turned, length, length, length, depth, 0);
        for (int64_t t = 0; t < length; t++) lm_softmax_back(ds + t * length, p + t * length, length);
        for (int64_t i = 0; i < length * length; i++) ds[i] *= scale;
        lm_matmul(dq, row, ds, length, 1, k, row, length, depth, length, 0);
        lm_matmul(dk, row, ds, 1, length, q, row, length, depth, length, 0);
    }
    turn(attention, dqkv, -1.0f);
}
