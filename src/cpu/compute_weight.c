/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight gradients of a segment: every element is one chain over the expert's rows in canonical order. A segment
 * that does not close its expert leaves the sums in the table's `open` area; the next one goes on from there.
 */
#include "cpu/compute.h"

#include "rules/bf16.h"

#include <string.h>

/* The three gradients, in the order of a segment's units. */
typedef enum which { GATE, UP, DOWN, ALL } which;

/* One of them: rows of the matrix come from `a` of a piece, columns from `b`. */
typedef struct kind {
    const ferry_gradient *gradient;
    which which;
    int64_t rows, columns;
} kind;

/* The wanted gradient that a unit belongs to; `unit` becomes its tile there. */
static kind kind_of(const fy_call *call, const fy_segment *segment, int64_t *unit) {
    const ferry_gradients *g = call->grads;
    int shared = segment->expert < 0;
    const ferry_gradient *each[ALL] = {shared ? &g->shared_gate : &g->gate, shared ? &g->shared_up : &g->up,
                                       shared ? &g->shared_down : &g->down};
    int64_t width = shared ? call->shape->shared : call->shape->intermediate, hidden = call->shape->hidden;
    int64_t tiles = fy_tiles(width) * fy_tiles(hidden);
    which w = GATE;
    for (; w < ALL; w++) {
        if (!fy_present(&each[w]->to)) continue;
        if (*unit < tiles) break;
        *unit -= tiles;
    }
    return (kind){each[w], w, w == DOWN ? hidden : width, w == DOWN ? width : hidden};
}

/* Adds a run of rows to the tile: A(m, r) and B(n, r) are columns of two row tensors. */
static void add_rows(fy_call *call, float *acc, const fy_piece *first, int64_t rows, which w, fy_tile t,
                     void *scratch) {
    fy_view v = fy_view_piece(call, first);
    const uint16_t *a = w == GATE ? v.dg : w == UP ? v.du : v.dout, *b = w == DOWN ? v.h : v.x;
    int64_t a_stride = w == DOWN ? v.dout_stride : v.width, b_stride = w == DOWN ? v.width : v.x_stride;
    call->kernels->product(acc, FY_TILE_COLUMNS, t.rows, t.columns, rows, 1, (fy_operand){a + t.row, 1, a_stride},
                           (fy_operand){b + t.column, 1, b_stride}, fy_product_scratch(scratch));
    fy_count_flop(call, t, rows);
}

/* Pieces of a segment lie one after the other, except where rows saved in the context end. */
static void add_pieces(fy_call *call, float *acc, const fy_segment *segment, which w, fy_tile t, void *scratch) {
    if (segment->expert < 0) {
        add_rows(call, acc, &call->shared, call->shared.rows, w, t, scratch);
        return;
    }
    const fy_piece *piece = call->piece + segment->first_piece, *end = piece + segment->pieces;
    while (piece < end) {
        const fy_piece *first = piece;
        int64_t rows = 0;
        for (; piece < end && piece->saved == first->saved; piece++) rows += piece->rows;
        add_rows(call, acc, first, rows, w, t, scratch);
    }
}

/* grad = round(beta * old + sum). */
static void store(const fy_kernels *kernels, const kind *k, int64_t expert, const float *acc, fy_tile t) {
    const ferry_matrices *to = &k->gradient->to;
    int64_t size = to->dtype == FERRY_F32 ? 4 : 2;
    unsigned char *matrix =
        to->table ? to->table[expert] : (unsigned char *)to->base + expert * to->expert_stride * size;
    int add = k->gradient->beta != 0.0f;
    for (int r = 0; r < t.rows; r++) {
        const float *from = acc + r * FY_TILE_COLUMNS;
        unsigned char *line = matrix + ((t.row + r) * to->row_stride + t.column) * size;
        float *f32 = (float *)line;
        uint16_t *bf16 = (uint16_t *)line;
        if (to->dtype == FERRY_F32)
            for (int c = 0; c < t.columns; c++) f32[c] = add ? f32[c] + from[c] : from[c];
        else if (!add)
            kernels->round_row(bf16, from, t.columns);
        else
            for (int c = 0; c < t.columns; c++) bf16[c] = fy_bf16_from_f32(fy_bf16_to_f32(bf16[c]) + from[c]);
    }
}

/* The tile's sums, kept between the segments of an expert that macrobatch ends have cut. */
static void copy_open(fy_call *call, const kind *k, float *acc, fy_tile t, int save) {
    float *open = (float *)fy_table(call, call->state->layout.table.open) + k->which * k->rows * k->columns;
    for (int r = 0; r < t.rows; r++) {
        float *kept = open + (t.row + r) * k->columns + t.column, *tile = acc + r * FY_TILE_COLUMNS;
        memcpy(save ? kept : tile, save ? tile : kept, (size_t)t.columns * sizeof(float));
    }
}

void fy_compute_weight(fy_call *call, const fy_segment *segment, int64_t unit, void *scratch) {
    float *acc = fy_accumulators(scratch, 0);
    kind k = kind_of(call, segment, &unit);
    int64_t column_tiles = fy_tiles(k.columns);
    /* Tiles are counted in column tiles both ways, so that gate and down have equally many. */
    int64_t row = unit / column_tiles * FY_TILE_COLUMNS, column = unit % column_tiles * FY_TILE_COLUMNS;
    fy_tile t = {row, column, (int)fy_least(FY_TILE_COLUMNS, k.rows - row),
                 (int)fy_least(FY_TILE_COLUMNS, k.columns - column)};
    int empty = segment->expert < 0 ? call->shared.rows == 0 : segment->pieces == 0;
    if (empty && k.gradient->beta != 0.0f) return; /* an expert without rows leaves what it adds to as it is */
    if (segment->opens)
        copy_open(call, &k, acc, t, 0);
    else
        for (int r = 0; r < t.rows; r++) memset(acc + r * FY_TILE_COLUMNS, 0, (size_t)t.columns * sizeof(float));
    add_pieces(call, acc, segment, k.which, t, scratch);
    if (segment->closes)
        store(call->kernels, &k, segment->expert < 0 ? 0 : segment->expert, acc, t);
    else
        copy_open(call, &k, acc, t, 1);
}
