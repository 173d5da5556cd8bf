/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels are told: one struct by value (fy_gpu_call), and the layouts of the memory it points into. Shared by
 * the host files (C) and the kernels (CUDA C).
 */
#ifndef FERRY_CUDA_CALL_H
#define FERRY_CUDA_CALL_H

#include "cuda/trace.h"
#include "ferry/ferry.h"
#include "rules/side.h"

#include <cuda.h>
#include <stdint.h>

enum {
    FY_GPU_MAX_RANKS = 16,
    FY_GPU_GRAIN = 2 << 20,    /* symmetric memory comes in pages of 2 MiB */
    FY_GPU_MAX_SMS = 256,      /* whose side is known */
    FY_LINE_WORDS = 32,        /* of a cache line */
    FY_GPU_MAX_EXPERTS = 4096, /* a histogram of them fits in shared memory */
    FY_TILE_M = 128,           /* rows of a product tile: two blocks, one for each consumer warpgroup */
    FY_TILE_N = 256,           /* columns; of gate and up together 128 + 128 */
    FY_HALF_N = 128,
    FY_TILE_K = 64, /* one step along the contraction: 128 bytes, one swizzle row */
    FY_STAGES = 4,
    FY_CHUNK = 512,           /* slots that one block of the schedule sorts */
    FY_SUM_COLUMNS = 2048,    /* of a token: the unit of summing */
    FY_PULL_ROWS = 4,         /* rows of a pull ticket */
    FY_HEAD_ROWS = 2,         /* at the head of the walk, where all warps pull */
    FY_HEAD_BYTES = 48 << 20, /* the head of one rank alone is as many steps as have so many bytes, at least one */
    FY_HEAD_SORTED = 64,      /* the most tiles of a head that are put in another order */
    FY_GROUP_TILES = 16,      /* row tiles that share a column of weights before the next column is taken */
    FY_LAST_GROUP_TILES = 4,  /* in the last step: tokens then complete one group after the other */
    FY_PLACE_THREADS = 256,   /* of a block of the place launch */
    FY_LAY_BLOCKS = 64,       /* of that launch, at most, that lay row tiles, an expert a warp */
    FY_THREADS = 384
};

/* A clamp that is none: the largest finite number. */
#define FY_NO_LIMIT 3.402823466e+38f

/* What a product ticket makes. */
enum fy_gpu_kind { FY_SHARED_MAKE = 0, FY_SHARED_FINISH = 1, FY_MAKE = 2, FY_FINISH = 3, FY_END = 4 };

/* A row tile, in walk order. */
typedef struct fy_gpu_tile {
    int32_t expert; /* local */
    int32_t row;    /* padded row of its first row */
    int32_t rows;   /* 1 .. 128 */
    /* Tiles of the same expert and macrobatch, in a sorted head those alike, as walk numbers. */
    int32_t piece_first, piece_count;
    int32_t spare[3];
} fy_gpu_tile;

/* A run of product tickets of one kind over one step's row tiles. */
typedef struct fy_gpu_unit {
    int32_t kind, first_tile, tiles;
    int32_t group;            /* the most row tiles that share a column of weights before the next column is taken */
    int32_t ticket[FY_SIDES]; /* the first of each side */
    int32_t needs;            /* the last unit whose tickets must all be taken before one of this begins; -1: none */
    int32_t by_piece;         /* the sides share out pieces, not columns (rules/side.h) */
} fy_gpu_unit;

/* What a rank tells every peer about its call. */
typedef struct fy_gpu_header {
    int32_t tokens;    /* as passed, also when too many */
    int32_t bad_count; /* ids out of range */
    int32_t bad_slot;  /* the first of them */
    int32_t spare;     /* of a backward: its parts */
    int64_t bad_id;    /* of a backward: the number of its forward */
} fy_gpu_header;

/* One slot as published: local sort result. expert -1: none. */
typedef struct fy_gpu_slot {
    int32_t expert, position;
} fy_gpu_slot;

/* Where a row came from. */
typedef struct fy_gpu_source {
    int32_t rank, slot;
} fy_gpu_source;

/* Numbers that live on the device between launches and calls. Counters that many blocks take from are lines apart. */
typedef struct fy_gpu_state {
    uint32_t calls; /* published and placed so far; the wait launch counts it up */
    uint32_t skip;  /* this call does nothing: too many tokens somewhere, or a fault */
    int32_t tokens;
    int32_t blocks, tiles, units, macrobatches, steps, rows;
    int32_t head_tiles;           /* the walk's first tiles, whose rows all warps pull, so that products begin soon */
    int32_t all_head_tiles;       /* these and those behind them whose rows too are pulled each for itself */
    int32_t head_first, head_end; /* padded rows of all these */
    int32_t most_blocks;          /* of any rank */
    uint32_t line0[18];
    uint32_t take_product[FY_SIDES * FY_LINE_WORDS]; /* of each side */
    uint32_t take_pull, line2[31];
    uint32_t take_head, line3[31];
    uint32_t take_sum, line7[31];                      /* parts of complete tokens */
    uint32_t take_share, listed, line8[30];            /* shares of tokens that are looked at; tokens in the list */
    uint32_t finished, pulls, remote_pulls, line6[29]; /* blocks of the compute launch that pull no more; rows pulled */
    uint32_t bad_count, bad_slot, line5[30];
} fy_gpu_state;

/* A place where the device can wait; the host has the words (watch.c). */
enum fy_gpu_site {
    FY_AT_ENTER = 1,
    FY_AT_PULL_SPACE,
    FY_AT_PULLED,
    FY_AT_MADE_SPACE,
    FY_AT_MADE,
    FY_AT_ARRIVED,
    FY_AT_KIND, /* no wait: a peer is in another kind of call */
    FY_AT_BACKWARD_SPACE,
    FY_AT_REMADE,
    FY_AT_GRADED,
    FY_AT_TURN,
    FY_AT_ENDED,
    FY_SITES
};

/* Pinned host memory that the device writes and the host reads. */
typedef struct fy_gpu_page {
    uint32_t fault; /* 1 once the fields below are there */
    uint32_t spare0;
    int32_t site, awaited_rank;
    int64_t expected, seen;
    uint32_t report; /* number of the call that wrote the fields below; 0: none */
    int32_t report_status, report_rank, spare1;
    int64_t report_count, report_slot, report_id;
    /* counters of the last call */
    int64_t rows, remote_rows, tokens, macrobatches, steps, blocks, table_bytes, sum_rows, pulls, remote_pulls;
    int64_t backward; /* its parts; 0: a forward */
    int64_t recomputed_rows;
    int64_t routed_products, shared_products; /* rows of products with hidden x intermediate, hidden x shared */
} fy_gpu_page;

/* Offsets within a rank's symmetric memory. Tables are double: a rank may be one call ahead of a peer. */
typedef struct fy_gpu_symmetric {
    uint64_t abort;     /* u32 */
    uint64_t flag;      /* u32 [ranks]: the last call that rank published; a lone rank's forwards do without */
    uint64_t header[2]; /* fy_gpu_header [ranks] */
    uint64_t counts[2]; /* i32 [ranks][experts] */
    uint64_t slots[2];  /* fy_gpu_slot [max_tokens * slots]; the owner's */
    uint64_t arrived;   /* u32 [max_tokens]: minus the result rows that are still to come */
    uint64_t x;         /* BF16 [max_tokens][hidden]: staged tokens */
    uint64_t y;         /* BF16 [max_tokens * slots][hidden]: result rows */
    uint64_t bytes;
} fy_gpu_symmetric;

/* Local device memory. */
typedef struct fy_gpu_tables {
    fy_gpu_state *state;
    int32_t *histogram;    /* [chunks][experts] */
    uint8_t *side;         /* [FY_GPU_MAX_SMS] of the cache (rules/side.h) */
    int32_t *expert_local; /* [experts]: index here, or -1 */
    int32_t *expert_rank;  /* [experts] */
    int32_t *local_expert; /* [local experts] */
    int32_t *first_block;  /* [local experts + 1] */
    int32_t *first_tile;   /* [local experts + 1], canonical numbers */
    int32_t *expert_rows;  /* [local experts] */
    int32_t *base;         /* [local experts][ranks]: padded row of a source's first row */
    int32_t *macro_tile;   /* [macrobatches + 1], canonical number of the first tile */
    fy_gpu_tile *tile;     /* [max_blocks] */
    fy_gpu_unit *unit;     /* [2 * max_blocks + 4] */
    fy_gpu_source *source; /* [max_blocks * 64] */
    int32_t *slot_row;     /* [ranks][max_tokens * slots]: padded row here, or -1 */
    uint32_t *complete;   /* [max_tokens] 1 + the tokens, in the order in which their rows have all come; 0: none yet */
    uint32_t *pulled;     /* [max_blocks] rows that are in the ring */
    uint32_t *made;       /* [max_blocks + shared blocks] column tiles of h that are stored */
    uint32_t *sent;       /* the same: column tiles of y that are stored */
    uint16_t *x_ring;     /* [ring_rows][hidden] */
    uint16_t *h_ring;     /* [ring_rows][intermediate] */
    uint16_t *shared_h;   /* [max_tokens][shared] */
    uint16_t *shared_y;   /* [max_tokens][hidden] */
    int32_t *tokens_copy; /* N when the caller's pointer is pageable host memory */
    CUtensorMap *weight_map; /* [3][local experts], for weights given as tables */
} fy_gpu_tables;

typedef struct fy_gpu_maps {
    CUtensorMap x, x_short, h, h_short; /* 128 rows; 64 rows, also for stores */
    CUtensorMap gate, up, down;
} fy_gpu_maps;

/*
 * Where a forward with a context leaves what its backward needs: x of saved rows (64 rows a box); g and u, in the
 * ring and in the context.
 */
typedef struct fy_gpu_keep_maps {
    CUtensorMap x, g[2], u[2];
} fy_gpu_keep_maps;

/* Passed by value to every kernel of a call. */
typedef struct fy_gpu_call {
    fy_gpu_maps routed, shared_expert;
    int32_t rank, ranks, experts, local_experts, slots, max_tokens;
    int32_t hidden, intermediate, shared;
    int32_t ring_blocks, mini_tiles, max_blocks;
    int32_t head_tiles, all_head_tiles; /* at most: those that all warps pull, those whose rows are pulled alone */
    int32_t comm_warps, comm_sms, fan_out, tables_of_weights;
    float limit;
    uint64_t enter_timeout_ns, progress_timeout_ns;
    uint8_t *peer[FY_GPU_MAX_RANKS]; /* symmetric memory of every rank as this device sees it */
    fy_gpu_symmetric at;
    fy_gpu_tables table;
    fy_gpu_page *page;
    const int32_t *tokens;
    const uint16_t *x;
    const void *ids;
    const float *weights;
    uint16_t *out;
    int64_t x_stride, out_stride;
    int32_t ids_are_64;
    int32_t staged;       /* 0: nobody but this rank's pulls reads the tokens, and they read the caller's */
    int32_t *expert_rows; /* [experts] rows over all ranks for the caller, or NULL */
    ferry_load *load;     /* for the caller, or NULL */
    fy_gpu_keep_maps keep, keep_shared;
    int32_t least_context_blocks; /* of any rank's context */
    int32_t context_blocks;       /* so many first blocks keep x, g, u in the context, others g and u in the ring */
    uint16_t *saved_x;            /* NULL: there is no context */
    uint32_t
        *ring_call; /* [2] forwards whose first macrobatch the ring holds, whose x is staged; any forward clears both */
    fy_gpu_trace trace;
    int32_t context_filled; /* an earlier forward has filled the context: a call that does nothing leaves that */
} fy_gpu_call;

#endif
