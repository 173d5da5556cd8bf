/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From counts to bytes and operations of the busiest rank, and from those, by a machine's rates, to seconds. The floor
 * is the largest of the three times, as if all overlapped. Pure; for plan_report.c and bench_cuda_report.c.
 */
#include "cli/plan_floor.h"

#include "rules/tile.h"

static double larger(double a, double b) { return a > b ? a : b; }

/*
 * Rows of width H: the pulled row written and read, the result written and read. Rows of width I: h written and read.
 * Tokens: x read, out written. The shared expert reads its x, and its result is written and read, without a pull.
 */
static double forward_bytes(const plan_rank *p, const ferry_layer_config *c) {
    double h = 2.0 * (double)c->hidden, i = 2.0 * (double)c->intermediate, s = 2.0 * (double)c->shared;
    double rows = (double)p->forward.rows, tokens = (double)p->tokens, local = (double)p->plan.local_experts;
    double shared = c->shared > 0 ? tokens * (3 * h + 2 * s) : 0;
    return 3 * (double)c->hidden * (local * i + s) + rows * (4 * h + 2 * i) + tokens * 2 * h + shared;
}

/*
 * Weights read and gradients written. Rows of width H: dout written, read for dh and for dWd; x read for dWg and dWu;
 * the dx row written and read. Rows of width I: g and u read; dg, du and w h' written and read for the weight
 * gradients; dg and du read for dx. Tokens: dout read, dx written. The forward writes g and u besides.
 */
static double backward_bytes(const plan_rank *p, const ferry_layer_config *c, int gradient_bytes) {
    double h = 2.0 * (double)c->hidden, i = 2.0 * (double)c->intermediate, s = 2.0 * (double)c->shared;
    double rows = (double)p->forward.rows, tokens = (double)p->tokens, local = (double)p->plan.local_experts;
    double elements = 3 * (double)c->hidden * (local * (double)c->intermediate + (double)c->shared);
    double shared = c->shared > 0 ? tokens * (5 * h + 12 * s) : 0;
    return elements * (2 + gradient_bytes) + rows * (6 * h + 12 * i) + tokens * 2 * h + shared;
}

plan_work plan_work_of(const plan_counts *counts, const ferry_layer_config *config, int both, int gradient_bytes) {
    plan_work w = {0, 0, 0, 0};
    for (int r = 0; r < counts->nranks; r++) {
        const plan_rank *p = &counts->rank[r];
        double in = (double)p->forward_in.fanned, in_each = (double)p->forward_in.each;
        double out = (double)p->forward_out.fanned, out_each = (double)p->forward_out.each;
        double flop = (double)p->forward.flop, memory = forward_bytes(p, config);
        if (both) {
            in += (double)p->backward_in.fanned;
            in_each += (double)p->backward_in.each;
            out += (double)p->backward_out.fanned;
            out_each += (double)p->backward_out.each;
            flop += (double)p->backward.flop;
            memory += backward_bytes(p, config, gradient_bytes);
        }
        w.flop = larger(w.flop, flop);
        w.link = larger(w.link, larger(in, out));
        w.link_each = larger(w.link_each, larger(in_each, out_each));
        w.memory = larger(w.memory, memory);
    }
    return w;
}

plan_floor plan_floor_of(const plan_work *work, const machine *m) {
    plan_floor f = {work->flop / m->product.per_s, work->link / m->link.per_s, work->memory / m->copy.per_s, 0};
    f.floor = larger(f.flop, larger(f.link, f.memory));
    return f;
}

int64_t plan_two_waves(const ferry_layer_config *config, const machine *m) {
    return m->is_this ? 0 : fy_two_wave_rows(m->processors, config->hidden, config->intermediate);
}
