/* SPDX-License-Identifier: Apache-2.0 */
/* What a forward leaves on the device for its backward: the layout of a context's memory. */
#ifndef FERRY_CUDA_CONTEXT_H
#define FERRY_CUDA_CONTEXT_H

#include "cuda/call.h"

struct fy_shape;

/* Numbers of the forward. */
typedef struct fy_gpu_kept {
    uint32_t call; /* the forward's number on the device: the ring's stamp */
    int32_t tokens, blocks, tiles, macrobatches, rows;
    int32_t remote_rows,
        own_rows;  /* of peers' tokens; results that this rank's sums read, the shared expert's included */
    int32_t has_x; /* own_x is there: some rank has more rows than every context holds, or there is a shared expert */
} fy_gpu_kept;

/* The schedule that a forward with a context writes straight here, and copies of what the caller may change. */
typedef struct fy_gpu_context {
    fy_gpu_kept *kept;
    int32_t *first_block, *first_tile, *expert_rows, *macro_tile; /* as in fy_gpu_tables */
    fy_gpu_source *source;
    int32_t *slot_row;
    int32_t *expert;               /* [max_tokens * slots] own slots' experts, -1: none */
    float *weights;                /* [max_tokens * slots]; 0 where there is no expert */
    uint16_t *own_x;               /* [max_tokens rounded to blocks][hidden]; where kept->has_x */
    uint16_t *x, *g, *u;           /* [context_rows][hidden or intermediate]: the first rows in canonical order */
    uint16_t *shared_g, *shared_u; /* [max_tokens rounded to blocks][shared]; only when context_rows > 0 */
} fy_gpu_context;

/* Sets the pointers as if the memory began at `base`; returns the bytes. */
int64_t fy_gpu_lay_context(const struct fy_shape *shape, uint8_t *base, fy_gpu_context *context);

#endif
