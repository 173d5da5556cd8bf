/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything of a layer lies, as offsets into its four regions: symmetric memory (peers read and write it), ring
 * (row buffers of one macrobatch), tables (schedule, counters, scratch) and a context. One function lays them out; the
 * plan's bytes are its totals.
 */
#ifndef FERRY_CPU_LAYOUT_H
#define FERRY_CPU_LAYOUT_H

#include "core/layer.h"

/* The schedule of a forward, in a context or (forward without one) in the layer's tables. */
typedef struct fy_schedule_layout {
    int64_t tokens;      /* int64 [R]: N of every rank */
    int64_t rows;        /* int64 [local E]: rows of every local expert */
    int64_t first_block; /* int64 [local E + 1] */
    int64_t source_base; /* int64 [local E][R + 1]: rows of the expert before those of source r */
    int64_t row;         /* fy_row [max_blocks * 64] */
    int64_t leader;      /* int32 [max_blocks * 64] */
    int64_t ids;         /* int32 [max_tokens * K]: own ids, cleaned */
    int64_t weights;     /* float [max_tokens * K]: own router weights */
    int64_t bytes;
} fy_schedule_layout;

typedef struct fy_layout {
    struct {               /* symmetric: equal on all ranks, whatever they hold */
        int64_t published; /* fy_published [2] */
        int64_t progress;  /* uint64: units done, ever */
        int64_t counts;    /* int32 [2][E] */
        int64_t ids;       /* int32 [2][max_tokens * K] */
        int64_t position;  /* int32 [2][max_tokens * K] */
        int64_t weights;   /* float [max_tokens * K]: staged for backward */
        int64_t arrived;   /* uint64 [max_tokens * K] */
        int64_t dweights;  /* float [max_tokens * K] */
        int64_t x, dout;   /* bf16 [max_tokens, H]: staged */
        int64_t slots;     /* bf16 [max_tokens * K, H]: y in forward, dx in backward */
        int64_t bytes;
    } symmetric;
    struct {                     /* bf16 unless said otherwise; one row per ring row */
        int64_t x, dout, result; /* [H]; result: y in forward, dx in backward */
        int64_t h;               /* [I]: h in forward, w * h' in backward */
        int64_t g, u, dg, du;    /* [I] */
        int64_t weight;          /* float: the router weight */
        int64_t dweight;         /* float [tiles of I] */
        int64_t bytes;
    } ring;
    struct {                     /* the shared expert: one row per own token */
        int64_t h, g, u, dg, du; /* [S] */
        int64_t result;          /* [H] */
    } shared;                    /* offsets into tables */
    struct {
        int64_t schedule; /* fy_schedule_layout, relative */
        int64_t steps, pieces, segments, groups;
        int64_t open; /* float [3][H * I]: sums of an expert that a macrobatch end has cut; none where one holds all */
        int64_t cursor;  /* int64 [E]: counters of the counting sort */
        int64_t lead;    /* int64 [2][macrobatches]: while finding leaders */
        int64_t scratch; /* of each worker: two tiles and the product's own (compute.h), or a row of sums */
        int64_t bytes;
    } table;
    struct {
        int64_t schedule;
        int64_t own_x;              /* [max_tokens, H] */
        int64_t x, g, u;            /* [context_rows, H or I] */
        int64_t shared_g, shared_u; /* [max_tokens, S]; only when context_rows > 0 */
        int64_t bytes;
    } context;
    fy_schedule_layout schedule;
    int64_t max_macrobatches;
    int64_t scratch_stride; /* bytes of one worker's scratch */
} fy_layout;

/* No region is larger; one of this size has wanted as much or more, so that it cannot be had. A multiple of 64, and
 * small enough that the four can be added. */
#define FY_LAYOUT_LIMIT (INT64_C(1) << 60)

fy_layout fy_cpu_layout(const fy_shape *shape, int64_t workers);

/* Column tiles of a product's result: by shape, never by a knob, since dweights are summed tile by tile. */
int64_t fy_tiles(int64_t columns);

#endif
