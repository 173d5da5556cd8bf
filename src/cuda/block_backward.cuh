/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the roles inside a block of the backward's compute launch share: the shared memory of the forward's block
 * (block.cuh), with descriptions of its own.
 */
#ifndef FERRY_CUDA_BLOCK_BACKWARD_CUH
#define FERRY_CUDA_BLOCK_BACKWARD_CUH

#include "cuda/backward.h"
#include "cuda/block.cuh"
#include "cuda/prim_wgmma.cuh"
#include "rules/side.h"

/* How the caller wants a weight gradient (fy_gpu_to), as flags. */
enum { FY_TO_F32 = 1, FY_TO_ADD = 2, FY_TO_TABLE = 4 };

enum { FY_GRAD_STEPS = FY_TILE_N / 64 }; /* stages of g and u behind the operands of a gradient tile */

/* A product tile. */
typedef struct fy_task {
    int32_t kind;
    int32_t rows;     /* 1 .. 128 */
    int32_t column;   /* number of the column tile */
    int32_t depth;    /* steps of 64 along the contraction; of dx: of one of its two ranges */
    int32_t row;      /* padded row (shared expert: token) of the first row */
    int32_t counter;  /* index of the first block's counters */
    int32_t load_row; /* row of the first block in the ring (shared expert: token) */
    int32_t matrix;   /* coordinate in the maps of weights and gradients */
    int32_t segment;
    /* weight gradients: */
    int32_t which;      /* FY_TASK_GATE .. */
    int32_t m;          /* number of the row tile */
    int32_t block;      /* first block of the segment */
    int32_t resumes;    /* goes on from open sums */
    int32_t closes;     /* leaves none */
    int32_t open, turn; /* number of the tile in the table of open sums; uses of it that come first */
    int32_t to;         /* FY_TO_..: the caller's gradient */
    int32_t shared;
} fy_task;

/* A signal that a warp of the consumers holds back: of its warpgroup's rows in a tile; of a weight gradient, where the
 * caller wants to know, `row` is the expert. */
typedef struct fy_backward_signal {
    int32_t kind, row, rows;
} fy_backward_signal;

typedef struct fy_backward_block {
    uint64_t full[FY_STAGES], empty[FY_STAGES];
    uint64_t old[2];          /* of a warpgroup: two pieces of what a gradient adds to have come in */
    uint64_t chosen, begun;   /* the next task: described and its inputs there; it is time to take one */
    int32_t first[FY_STAGES]; /* of a stage that begins a tile: its place in task[] */
    fy_task task[FY_WORKS];
    fy_backward_signal held[8]; /* of each consumer warp; registers are short there */
} fy_backward_block;

static_assert(offsetof(fy_backward_block, full) == 0 && offsetof(fy_backward_block, empty) == FY_STAGES * 8,
              "as multiply.cuh finds them");
static_assert(sizeof(fy_backward_block) <= sizeof(fy_block) || FY_BLOCK_AT + (int)sizeof(fy_backward_block) <= 232448,
              "a block has 227 KB of shared memory");

enum { FY_BACKWARD_SHARED_BYTES = FY_BLOCK_AT + (int)sizeof(fy_backward_block) };

FY_DEVICE fy_backward_block *fy_backward_block_of(uint8_t *shared) {
    return (fy_backward_block *)(shared + FY_BLOCK_AT);
}

/* The product of two numbers that are not negative, wide. */
FY_DEVICE uint64_t fy_wide(int a, int b) { return (uint64_t)(uint32_t)a * (uint32_t)b; }

FY_DEVICE bool fy_task_is_shared(int kind) { return kind <= FY_SHARED_DX; }

/* Of the kinds of an expert's own tiles, whoever's expert it is. */
FY_DEVICE int fy_task_plain(int kind) { return fy_task_is_shared(kind) ? kind + (FY_REMAKE - FY_SHARED_REMAKE) : kind; }

/* Stages that a tile is fed through; an expert without rows takes one, to carry the description. */
FY_DEVICE int fy_stages_of(const fy_task &t) {
    int kind = fy_task_plain(t.kind);
    return kind == FY_DX ? 2 * t.depth : kind == FY_GRAD ? t.depth + FY_GRAD_STEPS : max(t.depth, 1);
}

/* The first block of rows, for a trace; -1: tokens of the shared expert. */
FY_DEVICE int fy_rows_of(const fy_task &t) { return t.shared ? -1 : t.kind == FY_WEIGHT ? t.block : t.counter; }

/* Tiles [rows][columns] of a weight gradient. */
FY_DEVICE int2 fy_weight_tiles(const fy_gpu_call &c, bool shared, int which) {
    int inner = fy_inner_of(c, shared);
    return which == FY_TASK_DOWN ? make_int2(fy_parts(c.hidden, FY_TILE_M), fy_parts(inner, FY_TILE_N))
                                 : make_int2(fy_parts(inner, FY_TILE_M), fy_parts(c.hidden, FY_TILE_N));
}

/* Tickets of a side of all weight gradients of one expert. */
FY_DEVICE int fy_weight_tickets(const fy_gpu_call &c, const fy_gpu_backward &b, bool shared, int side) {
    int all = 0;
    for (int which = FY_TASK_GATE; which <= FY_TASK_DOWN; which++) {
        int2 tiles = fy_weight_tiles(c, shared, which);
        if (b.to[shared][which].wanted) all += fy_side_tickets(tiles.x, tiles.y, side);
    }
    return all;
}

/* Whether x, g, u of a padded row are in the context, and whether they have to be fetched and computed again. */
FY_DEVICE bool fy_is_saved(const fy_gpu_backward &b, int block) { return block < b.context_blocks; }

FY_DEVICE bool fy_is_missing(const fy_gpu_call &c, const fy_gpu_backward &b, int block, bool ringed) {
    return !fy_is_saved(b, block) && !(ringed && block < c.ring_blocks);
}

#endif
