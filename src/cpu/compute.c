/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a piece with their epilogues, and where the rows that they read and write are. */
#include "cpu/compute.h"

static const uint16_t *matrix_of(const ferry_matrices *m, int64_t expert) {
    return m->table ? m->table[expert] : (const uint16_t *)m->base + expert * m->expert_stride;
}

float *fy_accumulators(void *scratch, int which) { return (float *)scratch + which * FY_TILE_ROWS * FY_TILE_COLUMNS; }

void *fy_product_scratch(void *scratch) { return fy_accumulators(scratch, 2); }

static fy_view view_shared(const fy_call *call) {
    const fy_layout *l = &call->state->layout;
    int saved = call->context != NULL && call->shape->context_rows > 0;
    unsigned char *memory = saved ? call->context->memory : NULL;
    return (fy_view){.shared = 1,
                     .rows = call->tokens,
                     .width = call->shape->shared,
                     .x = call->x,
                     .x_stride = call->x_stride,
                     .dout = call->dout,
                     .dout_stride = call->dout_stride,
                     .h = (uint16_t *)fy_table(call, l->shared.h),
                     .g = (uint16_t *)(saved ? memory + l->context.shared_g : fy_table(call, l->shared.g)),
                     .u = (uint16_t *)(saved ? memory + l->context.shared_u : fy_table(call, l->shared.u)),
                     .dg = (uint16_t *)fy_table(call, l->shared.dg),
                     .du = (uint16_t *)fy_table(call, l->shared.du),
                     .result = (uint16_t *)fy_table(call, l->shared.result)};
}

fy_view fy_view_piece(const fy_call *call, const fy_piece *piece) {
    if (piece->expert < 0) return view_shared(call);
    const fy_layout *l = &call->state->layout;
    int64_t row = piece->first, hidden = call->shape->hidden, width = call->shape->intermediate;
    int64_t ring_row = fy_ring_row(row, call->shape->ring_rows);
    return (fy_view){.expert = piece->expert,
                     .rows = piece->rows,
                     .width = width,
                     .x = fy_row_at(call, row, l->context.x, l->ring.x, hidden),
                     .x_stride = hidden,
                     .dout = fy_ring_row_at(call, row, l->ring.dout, hidden),
                     .dout_stride = hidden,
                     .h = fy_ring_row_at(call, row, l->ring.h, width),
                     .g = fy_row_at(call, row, l->context.g, l->ring.g, width),
                     .u = fy_row_at(call, row, l->context.u, l->ring.u, width),
                     .dg = fy_ring_row_at(call, row, l->ring.dg, width),
                     .du = fy_ring_row_at(call, row, l->ring.du, width),
                     .result = fy_ring_row_at(call, row, l->ring.result, hidden),
                     .weight = (const float *)fy_ring(call, l->ring.weight) + ring_row,
                     .dweight = (float *)fy_ring(call, l->ring.dweight) + ring_row * fy_tiles(width)};
}

static fy_tile tile_of(const fy_group *group, int64_t unit, int64_t rows, int64_t columns) {
    /* Row tiles vary fastest: workers beside each other share a column tile of the weights. */
    int64_t row = unit % group->row_tiles * FY_TILE_ROWS, column = unit / group->row_tiles * FY_TILE_COLUMNS;
    return (fy_tile){row, column, (int)fy_least(FY_TILE_ROWS, rows - row),
                     (int)fy_least(FY_TILE_COLUMNS, columns - column)};
}

void fy_count_flop(fy_call *call, fy_tile tile, int64_t depth) {
    atomic_fetch_add_explicit(&call->flop, 2 * depth * tile.rows * tile.columns, memory_order_relaxed);
}

/* A: rows of a row-major tensor, multiplied along its columns. */
static fy_operand along_columns(const uint16_t *data, int64_t stride, int64_t row) {
    return (fy_operand){data + row * stride, stride, 1};
}

/* B of x W^T: rows of W. B of x W: columns of W. */
static fy_operand matrix_rows(const ferry_matrices *m, int64_t expert, int64_t row) {
    return (fy_operand){matrix_of(m, expert) + row * m->row_stride, m->row_stride, 1};
}
static fy_operand matrix_columns(const ferry_matrices *m, int64_t expert, int64_t column) {
    return (fy_operand){matrix_of(m, expert) + column, 1, m->row_stride};
}

static const ferry_matrices *gate_of(const fy_call *call, const fy_view *v) {
    return v->shared ? &call->params->shared_gate : &call->params->gate;
}
static const ferry_matrices *up_of(const fy_call *call, const fy_view *v) {
    return v->shared ? &call->params->shared_up : &call->params->up;
}
static const ferry_matrices *down_of(const fy_call *call, const fy_view *v) {
    return v->shared ? &call->params->shared_down : &call->params->down;
}

/* gate + up, then h and (where kept) g and u. A remake writes h too: its rows are rewritten before they are read. */
static void make(fy_call *call, const fy_view *v, fy_tile t, int keep, void *scratch) {
    const fy_kernels *k = call->kernels;
    float *g = fy_accumulators(scratch, 0), *u = fy_accumulators(scratch, 1);
    int64_t hidden = call->shape->hidden;
    fy_operand x = along_columns(v->x, v->x_stride, t.row);
    k->product(g, FY_TILE_COLUMNS, t.rows, t.columns, hidden, 0, x, matrix_rows(gate_of(call, v), v->expert, t.column),
               fy_product_scratch(scratch));
    k->product(u, FY_TILE_COLUMNS, t.rows, t.columns, hidden, 0, x, matrix_rows(up_of(call, v), v->expert, t.column),
               fy_product_scratch(scratch));
    for (int r = 0; r < t.rows; r++) {
        int64_t at = (t.row + r) * v->width + t.column;
        k->swiglu_row(v->h + at, keep ? v->g + at : NULL, keep ? v->u + at : NULL, g + r * FY_TILE_COLUMNS,
                      u + r * FY_TILE_COLUMNS, t.columns, call->shape->limit);
    }
    fy_count_flop(call, t, 2 * hidden);
}

static void down(fy_call *call, const fy_view *v, fy_tile t, void *scratch) {
    float *y = fy_accumulators(scratch, 0);
    call->kernels->product(y, FY_TILE_COLUMNS, t.rows, t.columns, v->width, 0, along_columns(v->h, v->width, t.row),
                           matrix_rows(down_of(call, v), v->expert, t.column), fy_product_scratch(scratch));
    for (int r = 0; r < t.rows; r++)
        call->kernels->round_row(v->result + (t.row + r) * call->shape->hidden + t.column, y + r * FY_TILE_COLUMNS,
                                 t.columns);
    fy_count_flop(call, t, v->width);
}

static void grad(fy_call *call, const fy_view *v, fy_tile t, void *scratch) {
    float *dh = fy_accumulators(scratch, 0);
    int64_t tiles = fy_tiles(v->width), part = t.column / FY_TILE_COLUMNS;
    call->kernels->product(dh, FY_TILE_COLUMNS, t.rows, t.columns, call->shape->hidden, 0,
                           along_columns(v->dout, v->dout_stride, t.row),
                           matrix_columns(down_of(call, v), v->expert, t.column), fy_product_scratch(scratch));
    for (int r = 0; r < t.rows; r++) {
        int64_t row = t.row + r, at = row * v->width + t.column;
        float weight = v->weight ? v->weight[row] : 1.0f;
        float dw = call->kernels->swiglu_grad_row(v->dg + at, v->du + at, v->h + at, dh + r * FY_TILE_COLUMNS,
                                                  v->g + at, v->u + at, t.columns, weight, call->shape->limit);
        if (v->dweight) v->dweight[row * tiles + part] = dw;
    }
    fy_count_flop(call, t, call->shape->hidden);
}

/* dx = dg Wg + du Wu: one chain over both K ranges. */
static void dx(fy_call *call, const fy_view *v, fy_tile t, void *scratch) {
    const fy_kernels *k = call->kernels;
    float *acc = fy_accumulators(scratch, 0);
    k->product(acc, FY_TILE_COLUMNS, t.rows, t.columns, v->width, 0, along_columns(v->dg, v->width, t.row),
               matrix_columns(gate_of(call, v), v->expert, t.column), fy_product_scratch(scratch));
    k->product(acc, FY_TILE_COLUMNS, t.rows, t.columns, v->width, 1, along_columns(v->du, v->width, t.row),
               matrix_columns(up_of(call, v), v->expert, t.column), fy_product_scratch(scratch));
    for (int r = 0; r < t.rows; r++)
        k->round_row(v->result + (t.row + r) * call->shape->hidden + t.column, acc + r * FY_TILE_COLUMNS, t.columns);
    fy_count_flop(call, t, 2 * v->width);
}

void fy_compute_unit(fy_call *call, const fy_group *group, int64_t unit, void *scratch) {
    if (group->work == FY_WORK_WEIGHT) {
        fy_compute_weight(call, group->index < 0 ? &call->shared_segment : &call->segment[group->index], unit, scratch);
        return;
    }
    const fy_piece *piece = group->index < 0 ? &call->shared : &call->piece[group->index];
    fy_view v = fy_view_piece(call, piece);
    int to_hidden = group->work == FY_WORK_DOWN || group->work == FY_WORK_DX;
    fy_tile t = tile_of(group, unit, v.rows, to_hidden ? call->shape->hidden : v.width);
    switch (group->work) {
    case FY_WORK_MAKE:
        make(call, &v, t, call->keep, scratch);
        break;
    case FY_WORK_REMAKE:
        make(call, &v, t, 1, scratch);
        if (t.column == 0 && !v.shared) atomic_fetch_add_explicit(&call->remade_rows, t.rows, memory_order_relaxed);
        break;
    case FY_WORK_GRAD:
        grad(call, &v, t, scratch);
        break;
    case FY_WORK_DOWN:
        down(call, &v, t, scratch);
        break;
    case FY_WORK_DX:
        dx(call, &v, t, scratch);
        break;
    case FY_WORK_WEIGHT:
        break;
    }
}
