/* SPDX-License-Identifier: Apache-2.0 */
/* How the sizes are chosen. Bytes of a backend's own buffers are the backend's to say. */
#include "core/plan.h"

#include "core/check.h"
#include "rules/place.h"
#include "rules/ring.h"

int32_t fy_rank_of_expert(const ferry_layer_config *config, int nranks, int64_t expert) {
    return config->expert_rank ? config->expert_rank[expert] : (int32_t)fy_split_owner(config->experts, nranks, expert);
}

size_t fy_layer_own_bytes(const fy_shape *shape) {
    return sizeof(ferry_layer) + (size_t)(2 * shape->experts + shape->local_experts) * sizeof(int32_t);
}

static int64_t count_local(const ferry_layer_config *config, int rank, int nranks) {
    int64_t count = 0;
    for (int64_t e = 0; e < config->experts; e++) count += fy_rank_of_expert(config, nranks, e) == rank;
    return count;
}

/* A balanced router sends every rank as many rows as a rank has slots; padding adds at most a block an expert. */
static int64_t balanced_rows(const fy_shape *s, int64_t local_experts) {
    return fy_round_to_blocks(s->max_tokens * s->slots) + local_experts * FY_BLOCK_ROWS;
}

static int64_t most_rows(const fy_shape *s, int64_t local_experts) {
    return local_experts == 0 ? 0 : s->nranks * s->max_tokens * s->slots;
}

/* Rows of the context of a rank with so many experts. */
static int64_t context_rows(const ferry_layer_config *config, const fy_shape *s, int64_t local_experts) {
    int64_t most = fy_most_blocks(most_rows(s, local_experts), local_experts) * FY_BLOCK_ROWS;
    int64_t rows =
        config->context_rows >= 0 ? fy_round_to_blocks(config->context_rows) : 2 * balanced_rows(s, local_experts);
    return fy_least(rows, most);
}

ferry_status fy_plan(const ferry_layer_config *config, const fy_backend *backend, int rank, int nranks,
                     int comm_workers, int compute_workers, fy_shape *shape, ferry_plan *plan) {
    fy_shape s = {.hidden = config->hidden,
                  .intermediate = config->intermediate,
                  .shared = config->shared,
                  .experts = config->experts,
                  .slots = config->slots,
                  .max_tokens = config->max_tokens,
                  .rank = rank,
                  .nranks = nranks,
                  .limit = config->swiglu_limit,
                  .pull_warps = config->pull_warps,
                  .fan_out = config->fan_out,
                  .comm_sms = config->comm_sms,
                  .sm_margin = config->sm_margin};
    s.local_experts = count_local(config, rank, nranks);
    s.max_rows = most_rows(&s, s.local_experts);
    s.max_blocks = fy_most_blocks(s.max_rows, s.local_experts);
    int64_t all = fy_most(s.max_blocks, 1) * FY_BLOCK_ROWS;
    s.ring_rows = config->ring_rows > 0 ? fy_round_to_blocks(config->ring_rows) : balanced_rows(&s, s.local_experts);
    s.ring_rows = fy_most(fy_least(s.ring_rows, all), FY_BLOCK_ROWS);
    s.context_rows = s.least_context_rows = context_rows(config, &s, s.local_experts);
    for (int r = 0; r < nranks; r++)
        s.least_context_rows = fy_least(s.least_context_rows, context_rows(config, &s, count_local(config, r, nranks)));
    s.minibatch_rows = fy_round_to_blocks(config->minibatch_rows);
    ferry_plan p = {.size = sizeof p, .local_experts = s.local_experts, .max_rows = s.max_rows};
    FY_TRY(backend->plan(&s, comm_workers, compute_workers, &p));
    s.minibatch_rows = fy_most(fy_least(s.minibatch_rows, s.ring_rows), FY_BLOCK_ROWS);
    p.minibatch_rows = s.minibatch_rows;
    p.ring_rows = s.ring_rows;
    p.context_rows = s.context_rows;
    p.table_bytes += (int64_t)fy_layer_own_bytes(&s);
    p.context_bytes = p.context_memory_bytes + (int64_t)sizeof(ferry_context);
    p.layer_bytes = p.symmetric_bytes + p.ring_bytes + p.table_bytes;
    *shape = s;
    *plan = p;
    return FERRY_OK;
}

static ferry_status check_workers(ferry_backend backend, int comm_workers, int compute_workers) {
    int least = backend == FERRY_CPU;
    if (comm_workers >= least && compute_workers >= least) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID, "ferry_layer_plan: %d communication and %d compute workers, expected >= %d",
                   comm_workers, compute_workers, least);
}

ferry_status ferry_layer_plan(const ferry_layer_config *config, ferry_backend backend, int rank, int nranks,
                              int comm_workers, int compute_workers, ferry_plan *plan) {
    if (backend != FERRY_CPU && backend != FERRY_CUDA)
        return fy_fail(FERRY_E_INVALID, "ferry_layer_plan: backend is %d, expected FERRY_CPU or FERRY_CUDA",
                       (int)backend);
    if (fy_backend_of(backend) == NULL)
        return fy_fail(FERRY_E_UNSUPPORTED, "ferry_layer_plan: this build does not have the CUDA backend");
    if (plan == NULL) return fy_fail(FERRY_E_INVALID, "ferry_layer_plan: plan is NULL");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return fy_fail(FERRY_E_INVALID, "ferry_layer_plan: rank %d of %d ranks, expected 0 <= rank < nranks", rank,
                       nranks);
    FY_TRY(check_workers(backend, comm_workers, compute_workers));
    FY_TRY(fy_check_layer_config(config, nranks));
    fy_shape shape;
    return fy_plan(config, fy_backend_of(backend), rank, nranks, comm_workers, compute_workers, &shape, plan);
}
