/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle's view of a batch. It runs once per rank's token block, since shared-expert gradients are sums over a
 * block; gradients of experts are then added over blocks.
 */
#include "cli/check/result.h"

#include <stdlib.h>
#include <string.h>

/* Everything in double, and a block's gradients of experts. */
typedef struct oracle {
    double *x, *dout, *weights, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    double *block[3]; /* dgate, dup, ddown of one block */
    double *memory;
} oracle;

static double *widen(double **next, const uint16_t *from, int64_t n) {
    double *to = *next;
    for (int64_t i = 0; i < n; i++) to[i] = (double)check_widen(from[i]);
    *next += n;
    return to;
}

static int oracle_make(const check_batch *batch, oracle *o) {
    const check_problem *p = &batch->problem;
    int64_t rows = p->tokens * p->hidden, slots = p->tokens * p->slots;
    int64_t routed = p->experts * p->intermediate * p->hidden, shared = p->shared * p->hidden;
    double *next = malloc((size_t)(2 * rows + slots + 6 * routed + 3 * shared + 1) * sizeof *next);
    o->memory = next;
    if (!next) return 0;
    o->x = widen(&next, batch->x, rows);
    o->dout = widen(&next, batch->dout, rows);
    o->gate = widen(&next, batch->gate, routed);
    o->up = widen(&next, batch->up, routed);
    o->down = widen(&next, batch->down, routed);
    o->shared_gate = widen(&next, batch->shared_gate, shared);
    o->shared_up = widen(&next, batch->shared_up, shared);
    o->shared_down = widen(&next, batch->shared_down, shared);
    o->weights = next;
    for (int64_t i = 0; i < slots; i++) o->weights[i] = (double)batch->weights[i];
    next += slots;
    for (int i = 0; i < 3; i++, next += routed) o->block[i] = next;
    return 1;
}

static double *values(check_result *result, check_tensor_id id, int64_t offset) {
    check_tensor *tensor = &result->tensor[id];
    return tensor->count ? (double *)(void *)tensor->data + offset : NULL;
}

static int run_block(const check_batch *batch, const check_way *way, int rank, fy_ref_mode mode, oracle *o,
                     check_result *result) {
    const check_problem *p = &batch->problem;
    int64_t first = check_way_first(way, p->tokens, rank), h = p->hidden, shared = rank * p->shared * h;
    fy_ref_problem problem = {
        .tokens = check_way_tokens(way, p->tokens, rank),
        .hidden = h,
        .intermediate = p->intermediate,
        .shared = p->shared,
        .experts = p->experts,
        .slots = p->slots,
        .limit = (double)p->limit,
        .mode = mode,
        .x = o->x + first * h,
        .ids = batch->ids + first * p->slots,
        .weights = o->weights + first * p->slots,
        .gate = o->gate,
        .up = o->up,
        .down = o->down,
        .shared_gate = o->shared_gate,
        .shared_up = o->shared_up,
        .shared_down = o->shared_down,
        .dout = p->forward_only ? NULL : o->dout + first * h,
    };
    fy_ref_result to = {
        .out = values(result, CHECK_OUT, first * h),
        .dx = values(result, CHECK_DX, first * h),
        .dweights = values(result, CHECK_DWEIGHTS, first * p->slots),
        .dgate = o->block[0],
        .dup = o->block[1],
        .ddown = o->block[2],
        .dshared_gate = values(result, CHECK_DSHARED_GATE, shared),
        .dshared_up = values(result, CHECK_DSHARED_UP, shared),
        .dshared_down = values(result, CHECK_DSHARED_DOWN, shared),
    };
    if (fy_ref_layer(&problem, &to) != 0) return 0;
    for (int i = 0; i < 3; i++) {
        check_tensor *tensor = &result->tensor[CHECK_DGATE + i];
        double *sum = values(result, CHECK_DGATE + i, 0);
        for (int64_t j = 0; j < tensor->count; j++) sum[j] += o->block[i][j];
    }
    return 1;
}

/* grad = round(beta * old + sum) */
static void finish_gradients(const check_problem *p, const check_way *way, fy_ref_mode mode, check_result *result) {
    for (int id = CHECK_DGATE; id < CHECK_TENSOR_COUNT; id++) {
        double *sum = values(result, (check_tensor_id)id, 0);
        for (int64_t i = 0; i < result->tensor[id].count; i++) {
            if (way->beta > 0) sum[i] += (double)check_old_gradient(p, way, (check_tensor_id)id, i);
            if (mode == FY_REF_POINTS && way->grad_dtype == FERRY_BF16) {
                sum[i] = (double)check_widen(check_bf16((float)sum[i]));
            }
        }
    }
}

check_result *check_reference(const check_case *c, const check_batch *batch, const check_way *way, fy_ref_mode mode) {
    check_result *result = check_result_make(c, batch, way, FERRY_F64);
    if (!result) return NULL;
    for (int id = CHECK_DGATE; id <= CHECK_DDOWN; id++) {
        memset(result->tensor[id].data, 0, (size_t)result->tensor[id].count * sizeof(double));
    }
    oracle o = {0};
    int good = oracle_make(batch, &o);
    for (int r = 0; r < check_way_ranks(way) && good; r++) good = run_block(batch, way, r, mode, &o, result);
    free(o.memory);
    if (!good) {
        check_fail(c, "no memory for the reference");
        check_result_free(result);
        return NULL;
    }
    finish_gradients(&batch->problem, way, mode, result);
    return result;
}
