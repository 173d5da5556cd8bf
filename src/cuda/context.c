/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a context's memory, in the one order from which both its bytes (plan.c, with NULL as the base) and its
 * pointers (launch_backward.c) come. Pure.
 */
#include "cuda/context.h"

#include "core/layer.h"
#include "cuda/lay.h"
#include "rules/ring.h"

int64_t fy_gpu_lay_context(const struct fy_shape *s, uint8_t *base, fy_gpu_context *t) {
    uint64_t cursor = 0;
    int64_t slots = s->max_tokens * s->slots, local = s->local_experts, tokens = fy_round_to_blocks(s->max_tokens);
    int64_t macrobatches = fy_divide_up(s->max_blocks * FY_BLOCK_ROWS, s->ring_rows);
    int64_t saved_tokens = s->context_rows > 0 ? tokens : 0;
    FY_GPU_PART(t, kept, 1);
    FY_GPU_PART(t, first_block, local + 1);
    FY_GPU_PART(t, first_tile, local + 1);
    FY_GPU_PART(t, expert_rows, local);
    FY_GPU_PART(t, macro_tile, macrobatches + 1);
    FY_GPU_PART(t, source, s->max_blocks * FY_BLOCK_ROWS);
    FY_GPU_PART(t, slot_row, s->nranks * slots);
    FY_GPU_PART(t, expert, slots);
    FY_GPU_PART(t, weights, slots);
    FY_GPU_PART(t, own_x, tokens * s->hidden);
    FY_GPU_PART(t, x, s->context_rows * s->hidden);
    FY_GPU_PART(t, g, s->context_rows * s->intermediate);
    FY_GPU_PART(t, u, s->context_rows * s->intermediate);
    FY_GPU_PART(t, shared_g, saved_tokens * s->shared);
    FY_GPU_PART(t, shared_u, saved_tokens * s->shared);
    return (int64_t)cursor;
}
