/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which shapes the backend takes, its rows by rule, and the layouts of a forward's memory, for backend.c (fy_gpu_plan)
 * and engine.c. A layout counts bytes with NULL as the base, and sets pointers with the real one.
 */
#include "cuda/plan.h"

#include "cuda/launch_backward.h"

#include "rules/tile.h"

/* Parts are aligned to 1,024 bytes: enough for the copy engine and for any vector. */
static uint64_t take(uint64_t *cursor, int64_t bytes) {
    uint64_t at = *cursor;
    *cursor = (at + (uint64_t)bytes + 1023) & ~UINT64_C(1023);
    return at;
}

/* E_UNSUPPORTED where the shape is not one that the kernels can take. */
static ferry_status check_shape(const fy_shape *s) {
    if (s->hidden % 8 || s->intermediate % 8 || s->shared % 8)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "CUDA backend: hidden %lld, intermediate %lld, shared %lld, expected multiples of 8 (rows of 16 "
                       "bytes); pad the weights with zeros",
                       (long long)s->hidden, (long long)s->intermediate, (long long)s->shared);
    if (s->nranks > FY_GPU_MAX_RANKS)
        return fy_fail(FERRY_E_UNSUPPORTED, "CUDA backend: %d ranks, expected at most %d", s->nranks, FY_GPU_MAX_RANKS);
    if (s->experts > FY_GPU_MAX_EXPERTS)
        return fy_fail(FERRY_E_UNSUPPORTED, "CUDA backend: %lld experts, expected at most %d", (long long)s->experts,
                       FY_GPU_MAX_EXPERTS);
    if (s->max_blocks * FY_BLOCK_ROWS > INT32_MAX / 2 || s->max_tokens * s->slots > INT32_MAX / 2)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "CUDA backend: %lld rows can come to rank %d, expected at most %d; lower max_tokens",
                       (long long)(s->max_blocks * FY_BLOCK_ROWS), s->rank, INT32_MAX / 2);
    return FERRY_OK;
}

void fy_gpu_choose_rows(fy_shape *s, int sms) {
    const int64_t tile = FY_TILE_BLOCKS * FY_BLOCK_ROWS;
    if (s->minibatch_rows == 0) s->minibatch_rows = fy_step_rows(sms, s->nranks, s->hidden, s->intermediate);
    s->minibatch_rows = fy_divide_up(s->minibatch_rows, tile) * tile;
}

void fy_gpu_lay_symmetric(const fy_shape *s, fy_gpu_symmetric *at) {
    uint64_t cursor = 0;
    int64_t slots = s->max_tokens * s->slots;
    at->abort = take(&cursor, sizeof(uint32_t));
    at->flag = take(&cursor, s->nranks * (int64_t)sizeof(uint32_t));
    for (int p = 0; p < 2; p++) {
        at->header[p] = take(&cursor, s->nranks * (int64_t)sizeof(fy_gpu_header));
        at->counts[p] = take(&cursor, s->nranks * s->experts * (int64_t)sizeof(int32_t));
        at->slots[p] = take(&cursor, slots * (int64_t)sizeof(fy_gpu_slot));
    }
    at->arrived = take(&cursor, s->max_tokens * (int64_t)sizeof(uint32_t));
    at->x = take(&cursor, s->max_tokens * s->hidden * 2);
    at->y = take(&cursor, slots * s->hidden * 2);
    at->bytes = (cursor + FY_GPU_GRAIN - 1) / FY_GPU_GRAIN * FY_GPU_GRAIN;
}

int64_t fy_gpu_lay_tables(const fy_shape *s, uint8_t *base, fy_gpu_tables *t) {
    uint64_t cursor = 0;
    int64_t slots = s->max_tokens * s->slots, local = s->local_experts;
    int64_t chunks = fy_divide_up(slots, FY_CHUNK),
            shared_blocks = s->shared > 0 ? fy_blocks_of_rows(s->max_tokens) : 0;
    int64_t counters = s->max_blocks + shared_blocks + FY_TILE_BLOCKS;
    int64_t macrobatches = fy_divide_up(s->max_blocks * FY_BLOCK_ROWS, s->ring_rows);
#define PART(field, count) t->field = (void *)(base + take(&cursor, (int64_t)(count) * (int64_t)sizeof *t->field))
    PART(state, 1);
    PART(histogram, chunks * s->experts);
    PART(side, FY_GPU_MAX_SMS);
    PART(expert_local, s->experts);
    PART(expert_rank, s->experts);
    PART(local_expert, local);
    PART(first_block, local + 1);
    PART(first_tile, local + 1);
    PART(expert_rows, local);
    PART(base, local * s->nranks);
    PART(macro_tile, macrobatches + 1);
    PART(tile, s->max_blocks);
    PART(unit, 2 * s->max_blocks + 4);
    PART(source, s->max_blocks * FY_BLOCK_ROWS);
    PART(slot_row, s->nranks * slots);
    PART(complete, s->max_tokens);
    PART(pulled, counters);
    PART(made, counters);
    PART(sent, counters);
    PART(shared_h, s->max_tokens * s->shared);
    PART(shared_y, s->shared > 0 ? s->max_tokens * s->hidden : 0);
    PART(tokens_copy, 1);
    PART(weight_map, 3 * local);
    return (int64_t)cursor;
}

int64_t fy_gpu_lay_ring(const fy_shape *s, uint8_t *base, fy_gpu_tables *t) {
    uint64_t cursor = 0;
    PART(x_ring, s->ring_rows * s->hidden);
    PART(h_ring, s->ring_rows * s->intermediate);
#undef PART
    return (int64_t)cursor;
}

/* What is left to the rule, for a rank with `sms` multiprocessors; `pull_warps` where the configuration has none. */
static ferry_status choose_knobs(fy_shape *s, int pull_warps, int sms, ferry_plan *plan) {
    if (s->sm_margin >= sms)
        return fy_fail(FERRY_E_INVALID,
                       "layer config: sm_margin is %d of the %d multiprocessors of rank %d, expected at most %d",
                       s->sm_margin, sms, s->rank, sms - 1);
    sms -= s->sm_margin;
    if (s->comm_sms >= sms)
        return fy_fail(FERRY_E_INVALID,
                       "layer config: comm_sms is %d of the %d multiprocessors that calls of rank %d use, expected at "
                       "most %d: the others multiply",
                       s->comm_sms, sms, s->rank, sms - 1);
    if (s->pull_warps == 0) s->pull_warps = pull_warps > 0 ? pull_warps : FY_PULL_WARPS;
    if (s->pull_warps > FY_MOST_PULL_WARPS)
        return fy_fail(FERRY_E_INVALID, "CUDA backend: %d pulling warps of a multiprocessor, expected at most %d",
                       s->pull_warps, FY_MOST_PULL_WARPS);
    if (s->pull_warps > FY_PULL_WARPS) s->pull_warps = FY_PULL_WARPS;
    if (s->fan_out == 0) s->fan_out = 1;
    plan->multiprocessors = sms;
    plan->pull_warps = s->pull_warps;
    plan->fan_out = s->fan_out;
    plan->comm_sms = s->comm_sms;
    return FERRY_OK;
}

fy_gpu_knobs fy_gpu_knobs_of(const fy_shape *s, const ferry_plan *plan) {
    return (fy_gpu_knobs){plan->multiprocessors, s->pull_warps, s->comm_sms, s->fan_out == 1};
}

ferry_status fy_gpu_plan(fy_shape *shape, int comm_workers, int compute_workers, ferry_plan *plan) {
    fy_gpu_tables tables;
    fy_gpu_backward_tables backward;
    fy_gpu_context context;
    FY_TRY(check_shape(shape));
    FY_TRY(choose_knobs(shape, comm_workers, compute_workers > 0 ? compute_workers : FY_WHOLE_H200, plan));
    fy_gpu_choose_rows(shape, plan->multiprocessors - plan->comm_sms);
    plan->symmetric_bytes = (int64_t)fy_gpu_symmetric_bytes(shape);
    plan->table_bytes = fy_gpu_lay_tables(shape, NULL, &tables);
    plan->ring_bytes = fy_gpu_lay_ring(shape, NULL, &tables) + fy_gpu_lay_backward(shape, NULL, &backward);
    plan->context_memory_bytes = fy_gpu_lay_context(shape, NULL, &context);
    return FERRY_OK;
}
