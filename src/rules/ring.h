/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks, macrobatches and the ring. Rows of a rank are counted in padded rows: every local expert's segment starts
 * at a block of its own, so padded row = 64 * first block of the expert + index within the expert.
 */
#ifndef FERRY_RULES_RING_H
#define FERRY_RULES_RING_H

#include "rules/rule.h"

#include <stdint.h>

enum { FY_BLOCK_ROWS = 64 };

FY_RULE int64_t fy_least(int64_t a, int64_t b) { return a < b ? a : b; }

FY_RULE int64_t fy_most(int64_t a, int64_t b) { return a > b ? a : b; }

FY_RULE int64_t fy_divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

FY_RULE int64_t fy_blocks_of_rows(int64_t rows) { return fy_divide_up(rows, FY_BLOCK_ROWS); }

FY_RULE int64_t fy_round_to_blocks(int64_t rows) { return fy_blocks_of_rows(rows) * FY_BLOCK_ROWS; }

/* Most blocks that `rows` rows can fill when they fall on at most `experts` segments, each padded to a block. */
FY_RULE int64_t fy_most_blocks(int64_t rows, int64_t experts) {
    int64_t used = fy_least(experts, rows);
    return (rows + (FY_BLOCK_ROWS - 1) * used) / FY_BLOCK_ROWS;
}

/* Where a padded row lives in a ring of `ring_rows` (a multiple of 64) rows. */
FY_RULE int64_t fy_ring_row(int64_t padded_row, int64_t ring_rows) { return padded_row % ring_rows; }

/* The macrobatch that a padded row belongs to: cuts are at blocks, so at multiples of 64 rows of an expert. */
FY_RULE int64_t fy_macrobatch_of_row(int64_t padded_row, int64_t ring_rows) { return padded_row / ring_rows; }

#endif
