/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the language model needs of a machine beside Ferry: memory, and mathematics on arrays in it. One table per
 * backend, so that the model, its training and its checkpoints are written once. Work happens in the order in which
 * it was asked for; on a GPU a call returns before its work is done, and what went wrong is said by the next `wait` or
 * `get`. A rank is one thread: its device and its stream belong to that thread.
 *
 * Arrays are F32 and contiguous rows unless said otherwise. Sums have one order that does not depend on how many rows
 * or parts a call has.
 */
#ifndef FERRY_LM_OPS_H
#define FERRY_LM_OPS_H

#include "lm/attention.h"
#include "lm/layout.h"
#include "lm/router.h"

#include <stddef.h>

/* Rows whose gradients (or sums) are kept apart: `count` parts of `rows` rows each; part i adds to what lies
 * i * stride elements behind the first part's. */
typedef struct lm_parts {
    int64_t count, rows, stride;
} lm_parts;

typedef struct lm_ops {
    /* 1: dense work takes all sequences at once, since launches cost; 0: one by one, while a cache holds one. */
    int whole;

    /* ---- Memory ---- */
    int (*open)(int device); /* for the calling thread. 0, or -1 with lm_error() */
    void (*close)(void);
    void *(*stream)(void);        /* for Ferry's calls */
    void *(*alloc)(size_t bytes); /* zeroed, aligned to 64 bytes; NULL when there is none */
    void (*free)(void *memory);
    /* Until all work is done; 0, or -1 with lm_error(). With several ranks none runs more than a step ahead: a GPU that
     * holds too many calls stops the caller, and perhaps a rank beside it that it waits for. */
    int (*wait)(void);
    int (*get)(void *host, const void *from, size_t bytes); /* waits. 0, or -1 with lm_error() */
    void (*put)(void *to, const void *host, size_t bytes);  /* the host's bytes may change when it returns */
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*zero)(void *to, size_t bytes);

    /* ---- Layers ---- */
    void (*embed)(float *x, const float *table, const unsigned char *bytes, int64_t rows, int64_t width);
    void (*embed_back)(float *dtable, lm_parts parts, const float *dx, const unsigned char *bytes, int64_t width);
    /* y[rows, out] = (add ? y : 0) + x[rows, in] w[in, out] */
    void (*linear)(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, int add);
    /* dw[in, out] += x^T dy, part by part */
    void (*linear_back)(float *dw, lm_parts parts, const float *dy, const float *x, int64_t in, int64_t out);
    /* See lm/dense.h. */
    void (*norm)(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t width);
    void (*norm_back)(float *dx, float *dgain, lm_parts parts, const float *dy, const float *x, const float *scale,
                      const float *gain, int64_t width);
    /* See lm/attention.h; of several sequences. */
    void (*attend)(const lm_attention *attention, float *out, float *p, float *qkv, int64_t sequences);
    void (*attend_back)(const lm_attention *attention, float *dqkv, const float *dout, const float *p, const float *qkv,
                        int64_t sequences);
    /* See lm/router.h. */
    void (*choose)(const lm_router *router, float *p, int32_t *ids, float *weights, int64_t tokens);
    void (*choose_back)(const lm_router *router, float *dlogits, const float *dweights, const float *p,
                        const int32_t *ids, const float *weights, const float *pull, int64_t tokens);
    /* Adds each part's sum of -log p to its sum. See lm/dense.h for what becomes of the logits [rows, LM_BYTES]. */
    void (*cross_entropy)(double *sums, lm_parts parts, float *logits, const unsigned char *target, float scale);

    /* ---- Arrays ---- */
    void (*round)(uint16_t *to, const float *from, int64_t count);                 /* F32 -> BF16, to nearest even */
    void (*add_bf16)(float *to, const float *a, const uint16_t *b, int64_t count); /* to = a + b; to may be a */
    void (*transpose)(float *to, const float *from, int64_t rows, int64_t columns);
    void (*add)(float *to, const float *from, int64_t count); /* to += from */
    void (*add_doubles)(double *to, const double *from, int64_t count);
    /* *to += from[0], then += from[1], and so on. */
    void (*add_up)(double *to, const double *from, int64_t count);
    /* to[i] += the sum of the squares of x[i * count .. (i + 1) * count - 1], for i < sums. */
    void (*square_sums)(double *to, const float *x, int64_t count, int64_t sums);
    /* counts[e] becomes how many of each part's rows * slots ids are e. */
    void (*count)(double *counts, lm_parts parts, const int32_t *ids, int64_t slots, int64_t experts);
    /* load[i] += counts[i]; pull[i] = weight * (counts[i] / (tokens * slots)) / tokens. */
    void (*balance)(float *pull, double *load, const double *counts, int64_t count, double weight, double tokens,
                    double slots);
    /* One update (lm/adamw.h); the gradient is clipped by its norm, the root of *squares. */
    void (*adamw)(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
                  const float *gradient, int64_t count, const double *squares, int decays);
} lm_ops;

extern const lm_ops lm_ops_cpu;
extern const lm_ops *const lm_ops_cuda; /* NULL: not in this build */

#endif
