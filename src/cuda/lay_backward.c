/* SPDX-License-Identifier: Apache-2.0 */
/* Where everything lies that only a backward uses. */
#include "cuda/lay.h"
#include "cuda/launch_backward.h"
#include "rules/tile.h"

uint64_t fy_gpu_lay_backward_symmetric(const fy_shape *s, fy_gpu_backward_symmetric *at) {
    fy_gpu_symmetric forward;
    fy_gpu_lay_symmetric(s, &forward);
    uint64_t cursor = forward.bytes;
    at->dout = fy_gpu_take(&cursor, fy_round_to_blocks(s->max_tokens) * s->hidden * 2);
    at->weights = fy_gpu_take(&cursor, s->max_tokens * s->slots * 4);
    at->dweights = fy_gpu_take(&cursor, s->max_tokens * s->slots * 4);
    at->arrived = fy_gpu_take(&cursor, s->max_tokens * 4);
    at->finished = fy_gpu_take(&cursor, s->nranks * 4);
    return cursor;
}

uint64_t fy_gpu_symmetric_bytes(const fy_shape *s) {
    fy_gpu_backward_symmetric at;
    return (fy_gpu_lay_backward_symmetric(s, &at) + FY_GPU_GRAIN - 1) / FY_GPU_GRAIN * FY_GPU_GRAIN;
}

/* Tiles of the three weight gradients of one expert. */
static int64_t weight_tiles(const fy_shape *s) {
    int64_t gate = fy_divide_up(s->intermediate, FY_TILE_M) * fy_divide_up(s->hidden, FY_TILE_N);
    return 2 * gate + fy_divide_up(s->hidden, FY_TILE_M) * fy_divide_up(s->intermediate, FY_TILE_N);
}

int64_t fy_gpu_lay_backward(const fy_shape *s, uint8_t *base, fy_gpu_backward_tables *t) {
    uint64_t cursor = 0;
    int64_t local = s->local_experts, tokens = fy_round_to_blocks(s->max_tokens), shared = s->shared > 0 ? tokens : 0;
    int64_t macrobatches = fy_divide_up(s->max_blocks * FY_BLOCK_ROWS, s->ring_rows),
            segments = local + macrobatches + 1;
    FY_GPU_PART(t, state, 1);
    FY_GPU_PART(t, tile, s->max_blocks);
    FY_GPU_PART(t, unit, 3 * s->max_blocks + macrobatches + 8);
    FY_GPU_PART(t, segment, segments);
    FY_GPU_PART(t, first_segment, local + 1);
    FY_GPU_PART(t, block_segment, s->max_blocks);
    FY_GPU_PART(t, remade, s->max_blocks + shared / FY_BLOCK_ROWS + FY_TILE_BLOCKS);
    FY_GPU_PART(t, ready, segments);
    FY_GPU_PART(t, gathered, segments);
    FY_GPU_PART(t, written, local);
    FY_GPU_PART(t, open, macrobatches > 1 ? weight_tiles(s) * FY_TILE_M * FY_TILE_N : 0);
    FY_GPU_PART(t, turn, weight_tiles(s));
    FY_GPU_PART(t, weight_map, 3 * local);
    FY_GPU_PART(t, to_map, 3 * local);
    FY_GPU_PART(t, dout_ring, s->ring_rows * s->hidden);
    FY_GPU_PART(t, g_ring, s->ring_rows * s->intermediate);
    FY_GPU_PART(t, u_ring, s->ring_rows * s->intermediate);
    FY_GPU_PART(t, dg_ring, s->ring_rows * s->intermediate);
    FY_GPU_PART(t, du_ring, s->ring_rows * s->intermediate);
    FY_GPU_PART(t, weight_ring, s->ring_rows);
    FY_GPU_PART(t, parts_ring, s->ring_rows * fy_divide_up(s->intermediate, FY_TILE_N));
    FY_GPU_PART(t, shared_g, s->context_rows > 0 ? 0 : shared * s->shared);
    FY_GPU_PART(t, shared_u, s->context_rows > 0 ? 0 : shared * s->shared);
    FY_GPU_PART(t, shared_dg, shared * s->shared);
    FY_GPU_PART(t, shared_du, shared * s->shared);
    FY_GPU_PART(t, shared_wh, shared * s->shared);
    return (int64_t)cursor;
}
