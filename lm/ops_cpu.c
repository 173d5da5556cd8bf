/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on the host: plain memory, and the functions of dense.c, matmul.c, attention.c, router.c, adamw.c. */
#include "lm/ops.h"

#include "lm/adamw.h"
#include "lm/dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

static int open_host(int device) {
    (void)device;
    return 0;
}

static void close_host(void) {}

static void *stream(void) { return NULL; }

static void *alloc(size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded ? rounded : 64);
    if (memory) memset(memory, 0, rounded);
    return memory;
}

static int wait_for_nothing(void) { return 0; }

static int get(void *host, const void *from, size_t bytes) {
    memcpy(host, from, bytes);
    return 0;
}

static void copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

static void zero(void *to, size_t bytes) { memset(to, 0, bytes); }

/* ---- Layers ---- */

static void embed(float *x, const float *table, const unsigned char *bytes, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) memcpy(x + i * width, table + bytes[i] * width, (size_t)width * sizeof(float));
}

static void embed_back(float *dtable, lm_parts parts, const float *dx, const unsigned char *bytes, int64_t width) {
    for (int64_t part = 0; part < parts.count; part++, dtable += parts.stride) {
        for (int64_t i = 0; i < parts.rows; i++, dx += width) lm_add(dtable + *bytes++ * width, dx, width);
    }
}

static void linear(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, int add) {
    lm_matmul(y, out, x, in, 1, w, out, rows, out, in, add);
}

static void linear_back(float *dw, lm_parts parts, const float *dy, const float *x, int64_t in, int64_t out) {
    for (int64_t part = 0; part < parts.count; part++, x += parts.rows * in, dy += parts.rows * out)
        lm_matmul(dw + part * parts.stride, out, x, 1, in, dy, out, in, out, parts.rows, 1);
}

static void norm_back(float *dx, float *dgain, lm_parts parts, const float *dy, const float *x, const float *scale,
                      const float *gain, int64_t width) {
    for (int64_t part = 0; part < parts.count; part++) {
        int64_t row = part * parts.rows, at = row * width;
        lm_norm_back(dx + at, dgain + part * parts.stride, dy + at, x + at, scale + row, gain, parts.rows, width);
    }
}

static void attend(const lm_attention *attention, float *out, float *p, float *qkv, int64_t sequences) {
    int64_t values = attention->length * attention->hidden, pairs = attention->length * attention->length;
    for (int64_t s = 0; s < sequences; s++)
        lm_attention_forward(attention, out + s * values, p + s * attention->heads * pairs, qkv + 3 * s * values);
}

static void attend_back(const lm_attention *attention, float *dqkv, const float *dout, const float *p, const float *qkv,
                        int64_t sequences) {
    int64_t values = attention->length * attention->hidden, pairs = attention->length * attention->length;
    for (int64_t s = 0; s < sequences; s++)
        lm_attention_backward(attention, dqkv + 3 * s * values, dout + s * values, p + s * attention->heads * pairs,
                              qkv + 3 * s * values);
}

static void cross_entropy(double *sums, lm_parts parts, float *logits, const unsigned char *target, float scale) {
    for (int64_t part = 0; part < parts.count; part++) {
        int64_t row = part * parts.rows;
        sums[part * parts.stride] +=
            lm_cross_entropy(logits + row * LM_BYTES, target + row, parts.rows, LM_BYTES, scale);
    }
}

/* ---- Arrays ---- */

static void transpose(float *to, const float *from, int64_t rows, int64_t columns) {
    lm_transpose(to, from, columns, rows, columns);
}

static void add_doubles(double *to, const double *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

static void add_up(double *to, const double *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) *to += from[i];
}

static void square_sums(double *to, const float *x, int64_t count, int64_t sums) {
    for (int64_t i = 0; i < sums; i++) to[i] += lm_square_sum(x + i * count, count);
}

static void count_ids(double *counts, lm_parts parts, const int32_t *ids, int64_t slots, int64_t experts) {
    for (int64_t part = 0; part < parts.count; part++, counts += parts.stride) {
        memset(counts, 0, (size_t)experts * sizeof *counts);
        for (int64_t i = 0; i < parts.rows * slots; i++) counts[*ids++] += 1;
    }
}

static void balance(float *pull, double *load, const double *counts, int64_t count, double weight, double tokens,
                    double slots) {
    for (int64_t i = 0; i < count; i++) {
        load[i] += counts[i];
        pull[i] = (float)(weight * (counts[i] / (tokens * slots)) / tokens);
    }
}

static void adamw(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
                  const float *gradient, int64_t count, const double *squares, int decays) {
    double norm = sqrt(*squares), scale = norm > config->clip ? config->clip / norm : 1;
    lm_adamw(config, step, value, moment1, moment2, gradient, count, scale, decays);
}

const lm_ops lm_ops_cpu = {.whole = 0,
                           .open = open_host,
                           .close = close_host,
                           .stream = stream,
                           .alloc = alloc,
                           .free = free,
                           .wait = wait_for_nothing,
                           .get = get,
                           .put = copy,
                           .copy = copy,
                           .zero = zero,
                           .embed = embed,
                           .embed_back = embed_back,
                           .linear = linear,
                           .linear_back = linear_back,
                           .norm = lm_norm,
                           .norm_back = norm_back,
                           .attend = attend,
                           .attend_back = attend_back,
                           .choose = lm_router_choose,
                           .choose_back = lm_router_back,
                           .cross_entropy = cross_entropy,
                           .round = lm_round,
                           .add_bf16 = lm_add_bf16,
                           .transpose = transpose,
                           .add = lm_add,
                           .add_doubles = add_doubles,
                           .add_up = add_up,
                           .square_sums = square_sums,
                           .count = count_ids,
                           .balance = balance,
                           .adamw = adamw};
