/* SPDX-License-Identifier: Apache-2.0 */
/* The whole layer: per token the shared expert's row, then the slots ascending; forward and backward in one pass. */
#include "ref/ref_parts.h"

#include <stdlib.h>

static void clear(double *values, int64_t n) {
    for (int64_t i = 0; i < n && values; i++) values[i] = 0;
}

static double *at(double *base, int64_t offset) { return base ? base + offset : NULL; }

static void add(double *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

static void finish(double *to, const double *sum, int64_t n, fy_ref_mode mode) {
    for (int64_t i = 0; i < n && to; i++) to[i] = mode == FY_REF_POINTS ? fy_ref_bf16(sum[i]) : sum[i];
}

static fy_ref_expert shared_expert(const fy_ref_problem *p, const fy_ref_result *r) {
    return (fy_ref_expert){
        .hidden = p->hidden,
        .width = p->shared,
        .limit = p->limit,
        .mode = p->mode,
        .gate = p->shared_gate,
        .up = p->shared_up,
        .down = p->shared_down,
        .dgate = r->dshared_gate,
        .dup = r->dshared_up,
        .ddown = r->dshared_down,
    };
}

static fy_ref_expert routed_expert(const fy_ref_problem *p, const fy_ref_result *r, int64_t id) {
    int64_t first = id * p->intermediate * p->hidden;
    return (fy_ref_expert){
        .hidden = p->hidden,
        .width = p->intermediate,
        .limit = p->limit,
        .mode = p->mode,
        .gate = p->gate + first,
        .up = p->up + first,
        .down = p->down + first,
        .dgate = at(r->dgate, first),
        .dup = at(r->dup, first),
        .ddown = at(r->ddown, first),
    };
}

/* One token. `out` and `dx` are sums of [H] in double. */
static void token(const fy_ref_problem *p, fy_ref_result *r, int64_t t, fy_ref_row *row, double *out, double *dx) {
    const double *x = p->x + t * p->hidden;
    const double *dout = p->dout ? p->dout + t * p->hidden : NULL;
    clear(out, p->hidden);
    clear(dx, p->hidden);
    if (p->shared > 0) {
        fy_ref_expert expert = shared_expert(p, r);
        fy_ref_expert_forward(&expert, x, row);
        add(out, row->y, p->hidden);
        if (dout) {
            fy_ref_expert_backward(&expert, x, dout, 1, row);
            add(dx, row->dx, p->hidden);
        }
    }
    for (int64_t slot = t * p->slots; slot < (t + 1) * p->slots; slot++) {
        int64_t id = p->ids[slot];
        if (id < 0 || id >= p->experts) continue;
        double weight = p->weights[slot];
        fy_ref_expert expert = routed_expert(p, r, id);
        fy_ref_expert_forward(&expert, x, row);
        for (int64_t j = 0; j < p->hidden; j++) out[j] += weight * row->y[j];
        if (!dout) continue;
        double dweight = fy_ref_expert_backward(&expert, x, dout, weight, row);
        if (r->dweights) r->dweights[slot] = dweight;
        add(dx, row->dx, p->hidden);
    }
}

int fy_ref_layer(const fy_ref_problem *p, fy_ref_result *r) {
    int64_t width = p->intermediate > p->shared ? p->intermediate : p->shared;
    double *memory = malloc((size_t)(7 * width + 4 * p->hidden) * sizeof(double));
    if (!memory) return -1;
    double *rows = memory + 7 * width;
    fy_ref_row row = {
        .g = memory,
        .u = memory + width,
        .h = memory + 2 * width,
        .dh = memory + 3 * width,
        .dg = memory + 4 * width,
        .du = memory + 5 * width,
        .wh = memory + 6 * width,
        .y = rows,
        .dx = rows + p->hidden,
    };
    double *out = rows + 2 * p->hidden, *dx = rows + 3 * p->hidden;

    if (p->dout) {
        int64_t routed = p->experts * p->intermediate * p->hidden, shared = p->shared * p->hidden;
        clear(r->dweights, p->tokens * p->slots);
        clear(r->dgate, routed);
        clear(r->dup, routed);
        clear(r->ddown, routed);
        clear(r->dshared_gate, shared);
        clear(r->dshared_up, shared);
        clear(r->dshared_down, shared);
    }
    for (int64_t t = 0; t < p->tokens; t++) {
        token(p, r, t, &row, out, dx);
        finish(at(r->out, t * p->hidden), out, p->hidden, p->mode);
        if (p->dout) finish(at(r->dx, t * p->hidden), dx, p->hidden, p->mode);
    }
    free(memory);
    return 0;
}
