/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of one ticket, without any waiting: tiles of the products with their epilogues. */
#ifndef FERRY_CPU_COMPUTE_H
#define FERRY_CPU_COMPUTE_H

#include "cpu/state.h"

/* Where the rows of a piece are and which expert multiplies them: one view for routed and shared experts. */
typedef struct fy_view {
    int shared;
    int64_t expert; /* index into the matrices */
    int64_t rows;
    int64_t width;            /* I or S */
    const uint16_t *x, *dout; /* [rows, H] at their strides */
    int64_t x_stride, dout_stride;
    uint16_t *h, *g, *u, *dg, *du; /* [rows, width]; h: w * h' in backward; g, u: also where they are not kept */
    uint16_t *result;              /* [rows, H] */
    const float *weight;           /* [rows]; NULL: all 1 */
    float *dweight;                /* [rows][tiles of width]; NULL: none */
} fy_view;

/* The part of a product's result that one unit makes. */
typedef struct fy_tile {
    int64_t row, column;
    int rows, columns;
} fy_tile;

fy_view fy_view_piece(const fy_call *call, const fy_piece *piece);
/* A worker's scratch: two accumulator tiles, then what the product kernel wants. */
float *fy_accumulators(void *scratch, int which);
void *fy_product_scratch(void *scratch);
/* Counts 2 * depth for every element of the tile. */
void fy_count_flop(fy_call *call, fy_tile tile, int64_t depth);
/* Runs unit 0 .. row_tiles * column_tiles - 1 of a group. Its inputs are there. */
void fy_compute_unit(fy_call *call, const fy_group *group, int64_t unit, void *scratch);
/* One tile of the weight gradients of a segment (compute_weight.c). */
void fy_compute_weight(fy_call *call, const fy_segment *segment, int64_t unit, void *scratch);

#endif
