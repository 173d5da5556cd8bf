/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of a backward are told beside fy_gpu_call, whose tables of rows point into the context of the
 * forward; and the layouts of the memory that only a backward uses.
 */
#ifndef FERRY_CUDA_BACKWARD_H
#define FERRY_CUDA_BACKWARD_H

#include "cuda/context.h"
#include "ferry/ferry.h"

/* What a ticket of the backward makes. */
enum fy_gpu_task_kind {
    FY_SHARED_REMAKE = 16, /* g, u again */
    FY_SHARED_GRAD,        /* dh = dout Wd, then dg, du, w h' and parts of dweights */
    FY_SHARED_DX,          /* dx rows = dg Wg + du Wu */
    FY_REMAKE,
    FY_GRAD,
    FY_DX,
    FY_WEIGHT, /* a tile of dWg, dWu or dWd */
    FY_LAST
};

enum { FY_TASK_GATE = 0, FY_TASK_UP = 1, FY_TASK_DOWN = 2 };

/* The rows of one expert inside one macrobatch: a link of the chains of its weight gradients. */
typedef struct fy_gpu_segment {
    int32_t expert; /* local; -1: the shared expert */
    int32_t block, blocks;
    int32_t resumes, closes; /* begins from open sums; does not leave any */
    int32_t turn;            /* segments that use the open sums before this one does */
    int32_t spare[2];
} fy_gpu_segment;

/* Beyond fy_gpu_symmetric, in the same memory. */
typedef struct fy_gpu_backward_symmetric {
    uint64_t dout;     /* BF16 [max_tokens rounded to blocks][hidden]: staged */
    uint64_t weights;  /* F32 [max_tokens * slots] */
    uint64_t dweights; /* F32 [max_tokens * slots] */
    uint64_t arrived;  /* u32 [max_tokens]: dx rows that have come in */
    uint64_t finished; /* u32 [ranks]: the last call without dx rows in which that rank has pulled all that it wanted */
} fy_gpu_backward_symmetric;

/* Numbers that live on the device between launches and calls. */
typedef struct fy_gpu_backward_state {
    uint32_t ring_call; /* the forward whose macrobatch 0 (x, g, u) the ring holds; 0: none */
    uint32_t x_call;    /* the forward whose x is staged for peers; 0: none. Any forward clears both */
    int32_t ringed;     /* in this call: that is the forward of the context */
    uint32_t staged;    /* blocks of the staging launch that are done */
    int32_t units, steps;
    int32_t head_tiles, head_end; /* the head of the walk, whose rows all warps pull; its end in padded rows */
    int32_t spare[24];            /* counters that many blocks take from are lines apart */
    uint32_t take_ticket[FY_SIDES * FY_LINE_WORDS]; /* of each side */
    uint32_t take_pull, line1[31];
    uint32_t take_sum, line2[31];
    uint32_t take_head, line3[31];
    uint32_t finished, pulls, remote_pulls, line4[29]; /* blocks of the compute launch that are done; rows pulled */
} fy_gpu_backward_state;

typedef struct fy_gpu_backward_tables {
    fy_gpu_backward_state *state;
    fy_gpu_tile *tile;       /* [max_blocks], walk order of the backward, which is canonical */
    fy_gpu_unit *unit;       /* [3 * max_blocks + macrobatches + 8]: 3 of a step, 1 of a macrobatch, at most */
    fy_gpu_segment *segment; /* [local experts + macrobatches + 1]; the first is the shared expert's */
    int32_t *first_segment;  /* [local experts + 1], of experts that have rows */
    int32_t *block_segment;  /* [max_blocks] */
    uint32_t *remade;        /* [max_blocks + shared blocks] column tiles of g and u */
    uint32_t *ready;         /* [segments] column tiles of dg, du, w h' of all its blocks */
    uint32_t *gathered;      /* [segments] weight-gradient tiles, once for each warpgroup */
    uint32_t *written;       /* [local experts] weight-gradient tiles that are stored, likewise */
    float *open;             /* sums of the one expert that a macrobatch end has cut, tile by tile */
    uint32_t *turn;          /* [tiles of `open`] uses so far, once for each warpgroup */
    CUtensorMap *weight_map; /* [3][local experts], weights given as tables */
    CUtensorMap *to_map;     /* [3][local experts], gradients given as tables */
    uint16_t *dout_ring;     /* [ring_rows][hidden] */
    uint16_t *g_ring, *u_ring, *dg_ring, *du_ring; /* [ring_rows][intermediate]; w h' is in the forward's h ring */
    float *weight_ring;                            /* [ring_rows] */
    float *parts_ring; /* [ring_rows][column tiles of intermediate]: dweights before their sum */
    uint16_t *shared_g, *shared_u, *shared_dg, *shared_du; /* [max_tokens rounded to blocks][shared] */
    uint16_t *shared_wh; /* likewise; dx rows of the shared expert are in the forward's shared_y */
} fy_gpu_backward_tables;

/* Boxes of 64 x 64 BF16, unless F32 gradients: 32 x 64. */
typedef struct fy_gpu_backward_maps {
    CUtensorMap x[2], g[2], u[2]; /* in the ring, in the context */
    CUtensorMap dout, dg, du, wh;
    CUtensorMap gate, up, down;
    CUtensorMap to[3];
} fy_gpu_backward_maps;

/* Where a gradient goes. */
typedef struct fy_gpu_to {
    int32_t wanted, is_f32, add;
    int32_t table; /* maps are in to_map */
} fy_gpu_to;

typedef struct fy_gpu_backward {
    fy_gpu_backward_maps routed, shared_expert;
    fy_gpu_context context;
    fy_gpu_backward_symmetric at;
    fy_gpu_backward_tables table;
    fy_gpu_to to[2][3];        /* routed, shared expert */
    int32_t weight_tickets[2]; /* tiles of all its gradients, of one expert */
    int32_t parts;
    int32_t context_blocks, remake_shared, tables_of_weights;
    int32_t staged; /* 0: nobody but this rank's pulls reads dout, and they read the caller's */
    const uint16_t *dout;
    int64_t dout_stride;
    uint16_t *dx;
    int64_t dx_stride;
    float *dweights;
    uint32_t *ready; /* [local experts] the caller's words, or NULL; NULL without the weight part */
    uint32_t ready_value;
} fy_gpu_backward;

#endif
