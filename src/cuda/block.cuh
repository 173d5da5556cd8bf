/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the roles inside a block of the compute launch share: its shared memory, the description of a product tile that
 * the choosing warp hands to the loading thread and the consumers, and what these post to it.
 */
#ifndef FERRY_CUDA_BLOCK_CUH
#define FERRY_CUDA_BLOCK_CUH

#include "cuda/kind.cuh"
#include "cuda/prim_barrier.cuh"
#include "rules/tile.h"

#include <stddef.h>

enum {
    FY_A_BYTES = FY_TILE_M * FY_TILE_K * 2,
    FY_B_BYTES = FY_TILE_N * FY_TILE_K * 2,
    FY_STAGE_BYTES = FY_A_BYTES + FY_B_BYTES,
    /* Result rows: a warp holds 16 rows x 128 columns; rows are 16 bytes longer than the data, against bank conflicts.
     */
    FY_ROW_PITCH = 272,
    FY_WARP_BYTES = 16 * FY_ROW_PITCH,
    FY_GROUP_BYTES = 4 * FY_WARP_BYTES, /* of a warpgroup; also holds two 8 KB pieces of h */
    FY_PIECE_BYTES = 8192,
    FY_WORKS = 8 /* descriptions in flight: more than the choosing warp can be ahead (a tile and the stages) plus a
                    straggler */
};

/* A product tile. */
typedef struct fy_work {
    int32_t kind;
    int32_t rows;     /* 1 .. 128 */
    int32_t column;   /* number of the column tile */
    int32_t load_row; /* first row in the memory that A comes from, and that h goes to */
    int32_t row;      /* padded row (shared expert: token) of the first row */
    int32_t counter;  /* index of the first block's counters */
    int32_t matrix;   /* coordinate in the weight maps */
    int32_t depth;    /* steps of 64 along the contraction */
    int32_t behind;   /* tiles of its piece before it, in its step */
    int32_t site;     /* where it had to be waited for, of enum fy_gpu_site; 0: nowhere */
} fy_work;

/* What a warpgroup of the forward has staged (h) or stored (y); kind FY_END: there is no more. */
typedef struct fy_post {
    int32_t kind, column;                 /* as of the tile */
    int32_t load_row, counter, row, rows; /* likewise, of the warpgroup's rows of it */
} fy_post;

typedef struct fy_block {
    uint64_t full[FY_STAGES], empty[FY_STAGES];
    uint64_t chosen, begun;       /* tiles, by the choosing warp and by the loading thread */
    uint64_t posted[2], taken[2]; /* of a warpgroup */
    fy_post post[2];
    fy_work work[FY_WORKS];
    uint32_t pulled; /* warps that pull no more */
} fy_block;

/* Where a block's description, which begins with its barriers, is in shared memory. */
enum {
    FY_BLOCK_AT = FY_STAGES * FY_STAGE_BYTES + 2 * FY_GROUP_BYTES,
    FY_SHARED_BYTES = FY_BLOCK_AT + (int)sizeof(fy_block)
};

static_assert(offsetof(fy_block, full) == 0 && offsetof(fy_block, empty) == FY_STAGES * 8,
              "as multiply.cuh finds them");
static_assert(sizeof(fy_block) <= 1024 && FY_SHARED_BYTES <= 232448, "a block has 227 KB of shared memory");
static_assert(FY_GROUP_BYTES >= 2 * FY_PIECE_BYTES && FY_GROUP_BYTES % 1024 == 0, "pieces of h are swizzled by 1 KB");
static_assert(FY_WORKS > FY_STAGES + 3, "a description may be overwritten while it is read");

FY_DEVICE uint8_t *fy_stage_a(uint8_t *shared, int stage) { return shared + stage * FY_STAGE_BYTES; }
FY_DEVICE uint8_t *fy_stage_b(uint8_t *shared, int stage) { return shared + stage * FY_STAGE_BYTES + FY_A_BYTES; }
FY_DEVICE uint8_t *fy_group_buffer(uint8_t *shared, int group) {
    return shared + FY_STAGES * FY_STAGE_BYTES + group * FY_GROUP_BYTES;
}
FY_DEVICE fy_block *fy_block_of(uint8_t *shared) { return (fy_block *)(shared + FY_BLOCK_AT); }

/* Position in the ring of stages. */
typedef struct fy_stage {
    int index;
    uint32_t parity;
} fy_stage;

FY_DEVICE void fy_next_stage(fy_stage &s) {
    if (++s.index == FY_STAGES) {
        s.index = 0;
        s.parity ^= 1;
    }
}

FY_DEVICE int fy_stage_before(const fy_stage &s) { return (s.index + FY_STAGES - 1) % FY_STAGES; }

/* Barriers of the stages: one thread fills a stage, one of each consumer warpgroup gives it back. */
FY_DEVICE void fy_open_stages(uint64_t *full, uint64_t *empty) {
    for (int i = 0; i < FY_STAGES; i++) {
        fy_barrier_init(&full[i], 1);
        fy_barrier_init(&empty[i], 2);
    }
}

/* Those of chosen tiles, by one thread each. */
FY_DEVICE void fy_open_choice(uint64_t *chosen, uint64_t *begun) {
    fy_barrier_init(chosen, 1);
    fy_barrier_init(begun, 1);
}

/* Those of posts: the four warps of a warpgroup post, one thread takes. */
FY_DEVICE void fy_open_posts(fy_block *block) {
    for (int g = 0; g < 2; g++) {
        fy_barrier_init(&block->posted[g], 4);
        fy_barrier_init(&block->taken[g], 1);
    }
}

/* The byte of column group `chunk` (8 columns) of row `row` in a swizzled box. */
FY_DEVICE uint32_t fy_box_at(int row, int chunk) { return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4)); }

/* Blocks of 64 rows that a tile's rows fill: the second warpgroup has no work where this is 1. */
FY_DEVICE int fy_tile_blocks_used(int rows) { return rows > FY_BLOCK_ROWS ? 2 : 1; }

/* The next of `tickets` on a counter, or -1. */
FY_DEVICE int fy_take(uint32_t *counter, int tickets, int lane) {
    int ticket = 0;
    if (lane == 0) ticket = (int)atomicAdd(counter, 1u);
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    return ticket < tickets ? ticket : -1;
}

#endif
