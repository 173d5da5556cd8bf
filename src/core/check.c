/* SPDX-License-Identifier: Apache-2.0 */
/* Small checks of one field each, then one function for each struct that a caller fills. */
#include "core/check.h"

#include <math.h>

static ferry_status range(const char *where, const char *field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID, "%s: %s is %lld, expected %lld to %lld", where, field, (long long)value,
                   (long long)least, (long long)most);
}

static ferry_status struct_size(const char *where, size_t got, size_t expected) {
    if (got == expected) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID, "%s: size is %zu, expected %zu: fill the struct with its _init function first",
                   where, got, expected);
}

ferry_status fy_check_layer_config(const ferry_layer_config *c, int nranks) {
    static const char where[] = "layer config";
    const int64_t dimension = INT64_C(1) << 30, rows = INT64_C(1) << 40;
    if (c == NULL) return fy_fail(FERRY_E_INVALID, "layer config: is NULL");
    FY_TRY(struct_size(where, c->size, sizeof *c));
    FY_TRY(range(where, "hidden", c->hidden, 1, dimension));
    FY_TRY(range(where, "intermediate", c->intermediate, 1, dimension));
    FY_TRY(range(where, "shared", c->shared, 0, dimension));
    FY_TRY(range(where, "experts", c->experts, 1, 1 << 20));
    FY_TRY(range(where, "slots", c->slots, 1, 1 << 20));
    FY_TRY(range(where, "max_tokens", c->max_tokens, 0, dimension));
    FY_TRY(range(where, "minibatch_rows", c->minibatch_rows, 0, rows));
    FY_TRY(range(where, "ring_rows", c->ring_rows, 0, rows));
    FY_TRY(range(where, "context_rows", c->context_rows, -1, rows));
    FY_TRY(range(where, "max_bytes", c->max_bytes, 0, INT64_MAX));
    FY_TRY(range(where, "pull_warps", c->pull_warps, 0, 3));
    FY_TRY(range(where, "fan_out", c->fan_out, 0, 2));
    FY_TRY(range(where, "comm_sms", c->comm_sms, 0, INT32_MAX));
    FY_TRY(range(where, "sm_margin", c->sm_margin, 0, INT32_MAX));
    if (c->precision != FERRY_PRECISION_BF16)
        return fy_fail(FERRY_E_UNSUPPORTED, "layer config: precision %d, expected FERRY_PRECISION_BF16", c->precision);
    if (c->order != FERRY_ORDER_EXACT)
        return fy_fail(FERRY_E_UNSUPPORTED, "layer config: order %d, expected FERRY_ORDER_EXACT", c->order);
    if (!(c->swiglu_limit >= 0) || isinf(c->swiglu_limit))
        return fy_fail(FERRY_E_INVALID, "layer config: swiglu_limit is %g, expected a finite number >= 0 (0: no clamp)",
                       (double)c->swiglu_limit);
    /* Row tables hold 32-bit slots and row numbers: of one rank's slots, and of all rows that one rank can receive. */
    if (c->max_tokens > 0 && c->slots > INT32_MAX / 2 / c->max_tokens / nranks)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "layer config: ranks * max_tokens * slots = %d * %lld * %lld, expected less than 2^30 rows",
                       nranks, (long long)c->max_tokens, (long long)c->slots);
    for (int64_t e = 0; c->expert_rank && e < c->experts; e++) {
        if (c->expert_rank[e] < 0 || c->expert_rank[e] >= nranks)
            return fy_fail(FERRY_E_INVALID, "layer config: expert_rank[%lld] is %d, expected a rank 0 to %d",
                           (long long)e, c->expert_rank[e], nranks - 1);
    }
    return FERRY_OK;
}

static const char *dtype_name(ferry_dtype dtype) {
    switch (dtype) {
    case FERRY_BF16:
        return "BF16";
    case FERRY_F32:
        return "F32";
    case FERRY_F16:
        return "F16";
    case FERRY_F64:
        return "F64";
    case FERRY_I32:
        return "I32";
    case FERRY_I64:
        return "I64";
    }
    return "an unknown dtype";
}

static ferry_status stride(const char *where, const char *name, int64_t value, int64_t least) {
    if (value >= least) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID, "%s: row stride of %s is %lld elements, expected at least %lld", where, name,
                   (long long)value, (long long)least);
}

static ferry_status matrices(const char *where, const char *name, const ferry_matrices *m, int64_t count,
                             int64_t columns) {
    if (m->row_stride < columns) return stride(where, name, m->row_stride, columns);
    for (int64_t e = 0; m->table && e < count; e++)
        if (m->table[e] == NULL)
            return fy_fail(FERRY_E_INVALID, "%s: %s.table[%lld] is NULL", where, name, (long long)e);
    return FERRY_OK;
}

static ferry_status weight(const char *where, const char *name, const ferry_matrices *m, int64_t count,
                           int64_t columns) {
    if (count == 0) return FERRY_OK;
    if (!fy_present(m)) return fy_fail(FERRY_E_INVALID, "%s: %s is absent (base and table are NULL)", where, name);
    if (m->dtype != FERRY_BF16)
        return fy_fail(FERRY_E_UNSUPPORTED, "%s: %s has dtype %s, expected BF16", where, name, dtype_name(m->dtype));
    return matrices(where, name, m, count, columns);
}

/* Rows x columns for every expert, each in a place of its own: it is written. */
static ferry_status gradient(const char *where, const char *name, const ferry_gradient *g, int64_t count, int64_t rows,
                             int64_t columns) {
    const ferry_matrices *m = &g->to;
    if (count == 0 || !fy_present(m)) return FERRY_OK;
    if (m->dtype != FERRY_F32 && m->dtype != FERRY_BF16)
        return fy_fail(FERRY_E_UNSUPPORTED, "%s: %s has dtype %s, expected F32 or BF16", where, name,
                       dtype_name(m->dtype));
    if (g->beta != 0.0f && g->beta != 1.0f)
        return fy_fail(FERRY_E_INVALID, "%s: beta of %s is %g, expected 0 or 1", where, name, (double)g->beta);
    FY_TRY(matrices(where, name, m, count, columns));
    int64_t apart = m->expert_stride < 0 ? -m->expert_stride : m->expert_stride;
    if (m->table == NULL && count > 1 && apart < (rows - 1) * m->row_stride + columns)
        return fy_fail(FERRY_E_INVALID,
                       "%s: expert stride of %s is %lld elements, expected at least %lld: experts would overlap", where,
                       name, (long long)m->expert_stride, (long long)((rows - 1) * m->row_stride + columns));
    return FERRY_OK;
}

static ferry_status weights(const ferry_layer *layer, const char *where, const ferry_weights *w) {
    const fy_shape *s = &layer->shape;
    int64_t shared = s->shared > 0;
    FY_TRY(weight(where, "gate", &w->gate, s->local_experts, s->hidden));
    FY_TRY(weight(where, "up", &w->up, s->local_experts, s->hidden));
    FY_TRY(weight(where, "down", &w->down, s->local_experts, s->intermediate));
    FY_TRY(weight(where, "shared_gate", &w->shared_gate, shared, s->hidden));
    FY_TRY(weight(where, "shared_up", &w->shared_up, shared, s->hidden));
    return weight(where, "shared_down", &w->shared_down, shared, s->shared);
}

/* The most tokens that the call can have: on the CPU N itself, elsewhere N may live on a device and is not read. */
static int64_t forward_tokens(const ferry_layer *layer, const ferry_forward_args *a) {
    return layer->comm->config.backend == FERRY_CPU ? *a->num_tokens : layer->shape.max_tokens;
}
static int64_t backward_tokens(const ferry_layer *layer, const ferry_backward_args *a) {
    return layer->comm->config.backend == FERRY_CPU ? a->context->tokens : layer->shape.max_tokens;
}

static ferry_status tokens_at(const char *where, const char *name, const void *pointer, int64_t tokens,
                              int64_t row_stride, int64_t columns) {
    if (tokens != 0 && pointer == NULL)
        return fy_fail(FERRY_E_INVALID, "%s: %s is NULL, expected memory of %lld tokens", where, name,
                       (long long)tokens);
    return row_stride == 0 ? FERRY_OK : stride(where, name, row_stride, columns);
}

ferry_status fy_check_forward(const ferry_layer *layer, const ferry_forward_args *a) {
    static const char where[] = "ferry_forward";
    if (layer == NULL || a == NULL) return fy_fail(FERRY_E_INVALID, "%s: layer or args is NULL", where);
    FY_TRY(struct_size(where, a->size, sizeof *a));
    if (a->num_tokens == NULL) return fy_fail(FERRY_E_INVALID, "%s: num_tokens is NULL", where);
    int64_t tokens = forward_tokens(layer, a), hidden = layer->shape.hidden;
    FY_TRY(tokens_at(where, "x", a->x, tokens, a->x_stride, hidden));
    FY_TRY(tokens_at(where, "ids", a->ids, tokens, 0, 0));
    FY_TRY(tokens_at(where, "weights", a->weights, tokens, 0, 0));
    FY_TRY(tokens_at(where, "out", a->out, tokens, a->out_stride, hidden));
    if (a->ids_dtype != FERRY_I32 && a->ids_dtype != FERRY_I64)
        return fy_fail(FERRY_E_UNSUPPORTED, "%s: ids have dtype %s, expected I32 or I64", where,
                       dtype_name(a->ids_dtype));
    if (a->context && a->context->layer != layer)
        return fy_fail(FERRY_E_INVALID, "%s: the context belongs to another layer", where);
    return weights(layer, where, &a->params);
}

ferry_status fy_check_backward(const ferry_layer *layer, const ferry_backward_args *a) {
    static const char where[] = "ferry_backward";
    if (layer == NULL || a == NULL) return fy_fail(FERRY_E_INVALID, "%s: layer or args is NULL", where);
    FY_TRY(struct_size(where, a->size, sizeof *a));
    const fy_shape *s = &layer->shape;
    if (a->context == NULL || a->context->layer != layer)
        return fy_fail(FERRY_E_INVALID, "%s: the context is NULL or belongs to another layer", where);
    if (a->context->phase != FY_CONTEXT_FILLED)
        return fy_fail(FERRY_E_STATE, "%s: the context is empty: no forward has filled it", where);
    if (a->parts < 1 || a->parts > FERRY_BACKWARD_ALL)
        return fy_fail(FERRY_E_INVALID, "%s: parts is %d, expected FERRY_BACKWARD_DATA, _WEIGHT or _ALL", where,
                       a->parts);
    int64_t tokens = backward_tokens(layer, a);
    FY_TRY(tokens_at(where, "dout", a->dout, tokens, a->dout_stride, s->hidden));
    if (a->parts & FERRY_BACKWARD_DATA) FY_TRY(tokens_at(where, "dx", a->dx, tokens, a->dx_stride, s->hidden));
    int64_t shared = s->shared > 0;
    const ferry_gradients *g = &a->grads;
    FY_TRY(gradient(where, "grads.gate", &g->gate, s->local_experts, s->intermediate, s->hidden));
    FY_TRY(gradient(where, "grads.up", &g->up, s->local_experts, s->intermediate, s->hidden));
    FY_TRY(gradient(where, "grads.down", &g->down, s->local_experts, s->hidden, s->intermediate));
    FY_TRY(gradient(where, "grads.shared_gate", &g->shared_gate, shared, s->shared, s->hidden));
    FY_TRY(gradient(where, "grads.shared_up", &g->shared_up, shared, s->shared, s->hidden));
    FY_TRY(gradient(where, "grads.shared_down", &g->shared_down, shared, s->hidden, s->shared));
    return weights(layer, where, &a->params);
}
