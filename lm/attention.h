/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal multi-head attention with rotary positions over one sequence of T tokens. qkv is [T, 3H]: queries, keys and
 * values side by side, each with `heads` heads of D = H / heads (even) values.
 */
#ifndef FERRY_LM_ATTENTION_H
#define FERRY_LM_ATTENTION_H

#include <stdint.h>

typedef struct lm_attention {
    int64_t length, hidden, heads; /* T, H, heads */
    float *cosine, *sine;          /* [T, D/2] */
    float *scratch;                /* [T T + T D]; on a GPU [sequences heads T T] */
} lm_attention;

/* 0, or -1 when there is no memory. */
int lm_attention_init(lm_attention *attention, int64_t length, int64_t hidden, int64_t heads);
void lm_attention_free(lm_attention *attention);

/* Turns queries and keys in place to their positions, then out[T, H] = attention; p[heads, T, T] keeps the
 * probabilities for the way back. */
void lm_attention_forward(const lm_attention *attention, float *out, float *p, float *qkv);
/* dqkv[T, 3H] is written: the gradient of qkv as it was before it was turned. qkv and p are the forward's. */
void lm_attention_backward(const lm_attention *attention, float *dqkv, const float *dout, const float *p,
                           const float *qkv);

#endif
