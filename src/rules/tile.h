/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row tiles of the GPU: an expert's rows in one macrobatch (a piece) are cut into tiles of two blocks, counted from
 * the piece's first row, so only a piece's last tile is ragged. Tiles are numbered in canonical order; the walk takes
 * macrobatches from the last to the first, tiles ascending within one.
 */
#ifndef FERRY_RULES_TILE_H
#define FERRY_RULES_TILE_H

#include "rules/ring.h"

enum { FY_TILE_BLOCKS = 2 };

/* Tiles of one expert's blocks [first, end), which macrobatches of ring_blocks blocks cut into pieces. */
FY_RULE int64_t fy_tiles_between(int64_t first, int64_t end, int64_t ring_blocks) {
    int64_t cut = (first / ring_blocks + 1) * ring_blocks;
    if (end <= first) return 0;
    if (end <= cut) return fy_divide_up(end - first, FY_TILE_BLOCKS);
    int64_t whole = (end - cut) / ring_blocks;
    int64_t rest = end - cut - whole * ring_blocks;
    return fy_divide_up(cut - first, FY_TILE_BLOCKS) + whole * fy_divide_up(ring_blocks, FY_TILE_BLOCKS) +
           fy_divide_up(rest, FY_TILE_BLOCKS);
}

typedef struct fy_tile_place {
    int64_t block;                  /* first block of the tile */
    int64_t piece_first, piece_end; /* blocks of its piece */
} fy_tile_place;

/* Tile `index` of an expert whose blocks are [first, end). */
FY_RULE fy_tile_place fy_tile_at(int64_t first, int64_t end, int64_t ring_blocks, int64_t index) {
    fy_tile_place p;
    int64_t cut = (first / ring_blocks + 1) * ring_blocks;
    int64_t head = fy_divide_up((cut < end ? cut : end) - first, FY_TILE_BLOCKS);
    int64_t each = fy_divide_up(ring_blocks, FY_TILE_BLOCKS);
    int64_t after = index - head;
    p.piece_first = after < 0 ? first : cut + after / each * ring_blocks;
    p.piece_end = after < 0 ? cut : p.piece_first + ring_blocks;
    p.piece_end = p.piece_end < end ? p.piece_end : end;
    p.block = p.piece_first + FY_TILE_BLOCKS * (after < 0 ? index : after % each);
    return p;
}

/* Tile rows of at least two waves of product tiles (128 x 256) over `workers` multiprocessors. */
FY_RULE int64_t fy_two_wave_rows(int64_t workers, int64_t hidden, int64_t intermediate) {
    int64_t narrow = 2 * intermediate < hidden ? 2 * intermediate : hidden;
    return fy_divide_up(2 * workers * 128 * 256, narrow);
}

/*
 * Rows of a step by rule: two waves, but one where the narrower product is narrow and rows come from peers - there the
 * first step's rows are long on the links, and the rows in flight at the end, whose sums nothing hides, weigh more than
 * weights that are read once more.
 */
FY_RULE int64_t fy_step_rows(int64_t workers, int64_t ranks, int64_t hidden, int64_t intermediate) {
    int64_t two = fy_two_wave_rows(workers, hidden, intermediate);
    return ranks > 1 && (hidden < 4096 || 2 * intermediate < 4096) ? fy_divide_up(two, 2) : two;
}

#endif
