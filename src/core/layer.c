/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: configuration agreed on by all ranks, expert maps, plan, and the calls handed to the backend. */
#include "core/layer.h"

#include "core/check.h"
#include "core/plan.h"
#include "core/tune.h"

#include <string.h>

void ferry_layer_config_init(ferry_layer_config *config) {
    if (config) *config = (ferry_layer_config){.size = sizeof *config, .context_rows = -1};
}

void ferry_forward_args_init(ferry_forward_args *args) {
    if (args) *args = (ferry_forward_args){.size = sizeof *args, .ids_dtype = FERRY_I32};
}

void ferry_backward_args_init(ferry_backward_args *args) {
    if (args) *args = (ferry_backward_args){.size = sizeof *args, .parts = FERRY_BACKWARD_ALL};
}

/* What every rank must give alike. */
enum { AGREED = 12 };

typedef struct agreement {
    int64_t value[AGREED];
} agreement;

static const char *const agreement_name[AGREED] = {"hidden",
                                                   "intermediate",
                                                   "shared",
                                                   "experts",
                                                   "slots",
                                                   "max_tokens",
                                                   "swiglu_limit (bits)",
                                                   "minibatch_rows",
                                                   "ring_rows",
                                                   "context_rows",
                                                   "expert_rank (hash)",
                                                   "precision"};

/* Of the map that the layer will use: one given and equal to the contiguous one is the same as none. */
static int64_t map_hash(const ferry_layer_config *c, int nranks) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a, a rank at a time */
    for (int64_t e = 0; e < c->experts; e++)
        hash = (hash ^ (uint32_t)fy_rank_of_expert(c, nranks, e)) * UINT64_C(0x100000001b3);
    return (int64_t)hash;
}

static ferry_status agree_on_config(ferry_comm *comm, const ferry_layer_config *c) {
    int32_t limit_bits;
    memcpy(&limit_bits, &c->swiglu_limit, sizeof limit_bits);
    agreement mine = {{c->hidden, c->intermediate, c->shared, c->experts, c->slots, c->max_tokens, limit_bits,
                       c->minibatch_rows, c->ring_rows, c->context_rows, map_hash(c, comm->nranks), c->precision}};
    agreement all[FY_MAX_RANKS];
    ferry_status status = fy_allgather(comm, &mine, all, sizeof mine);
    for (int r = 1; r < comm->nranks && status == FERRY_OK; r++)
        for (int i = 0; i < AGREED && status == FERRY_OK; i++)
            if (all[r].value[i] != all[0].value[i])
                status = fy_fail(FERRY_E_MISMATCH,
                                 "ferry_layer_create: ranks disagree about %s: rank 0 gives %lld, rank %d gives %lld",
                                 agreement_name[i], (long long)all[0].value[i], r, (long long)all[r].value[i]);
    return status;
}

static void build_maps(ferry_layer *layer, const ferry_layer_config *c) {
    for (int64_t e = 0; e < c->experts; e++) layer->expert_rank[e] = fy_rank_of_expert(c, layer->shape.nranks, e);
    int64_t mine = 0;
    for (int r = 0; r < layer->shape.nranks; r++) {
        int32_t index = 0;
        for (int64_t e = 0; e < c->experts; e++) {
            if (layer->expert_rank[e] != r) continue;
            if (r == layer->shape.rank) layer->local_expert[mine++] = (int32_t)e;
            layer->expert_local[e] = index++;
        }
    }
}

static void release(ferry_layer *layer) {
    fy_memory *memory = &layer->comm->memory;
    fy_free(memory, layer, fy_layer_own_bytes(&layer->shape));
}

/* The struct and its maps are one allocation: three arrays follow the struct. */
static ferry_status allocate(ferry_comm *comm, const ferry_layer_config *config, const fy_shape *shape,
                             const ferry_plan *plan, ferry_layer **out) {
    if (config->max_bytes > 0 && plan->layer_bytes > config->max_bytes)
        return fy_fail(FERRY_E_MEMORY,
                       "ferry_layer_create: the plan of rank %d needs %lld bytes, max_bytes is %lld: %lld bytes short; "
                       "lower ring_rows or max_tokens",
                       shape->rank, (long long)plan->layer_bytes, (long long)config->max_bytes,
                       (long long)(plan->layer_bytes - config->max_bytes));
    ferry_layer *layer;
    FY_TRY(fy_alloc(&comm->memory, fy_layer_own_bytes(shape), "a layer", (void **)&layer));
    layer->comm = comm;
    layer->shape = *shape;
    layer->plan = *plan;
    layer->expert_rank = (int32_t *)(layer + 1);
    layer->expert_local = layer->expert_rank + config->experts;
    layer->local_expert = layer->expert_local + config->experts;
    layer->report.size = sizeof layer->report;
    layer->stats.size = sizeof layer->stats;
    *out = layer;
    return FERRY_OK;
}

ferry_status ferry_layer_create(ferry_comm *comm, const ferry_layer_config *config, ferry_layer **out) {
    if (comm == NULL || out == NULL) return fy_fail(FERRY_E_INVALID, "ferry_layer_create: comm or layer is NULL");
    FY_TRY(fy_fault_status(comm));
    FY_TRY(fy_agree(comm, fy_check_layer_config(config, comm->nranks), "creating a layer"));
    FY_TRY(agree_on_config(comm, config));
    ferry_layer_config chosen = *config;
    int workers = comm->config.comm_workers + comm->config.compute_workers, comm_workers = comm->config.comm_workers;
    int tuned = 0;
    FY_TRY(fy_tune_layer(comm, &chosen, &comm_workers, &tuned));
    fy_shape shape;
    ferry_plan plan;
    ferry_layer *layer = NULL;
    ferry_status status = fy_plan(&chosen, fy_backend_of(comm->config.backend), comm->rank, comm->nranks, comm_workers,
                                  workers - comm_workers, &shape, &plan);
    plan.tuned = tuned;
    if (status == FERRY_OK) status = allocate(comm, config, &shape, &plan, &layer);
    status = fy_agree(comm, status, "creating a layer");
    if (status == FERRY_OK) {
        build_maps(layer, config);
        status = fy_backend_of(comm->config.backend)->layer_create(layer);
    }
    if (status != FERRY_OK) {
        if (layer) release(layer);
        return status;
    }
    *out = layer;
    return FERRY_OK;
}

void ferry_layer_destroy(ferry_layer *layer) {
    if (layer == NULL) return;
    fy_backend_of(layer->comm->config.backend)->layer_destroy(layer);
    release(layer);
}

ferry_status ferry_layer_get_plan(const ferry_layer *layer, ferry_plan *plan) {
    if (layer == NULL || plan == NULL) return fy_fail(FERRY_E_INVALID, "ferry_layer_get_plan: an argument is NULL");
    *plan = layer->plan;
    return FERRY_OK;
}

int64_t ferry_layer_local_experts(const ferry_layer *layer, int rank) {
    if (layer == NULL || rank < 0 || rank >= layer->shape.nranks) return -1;
    int64_t count = 0;
    for (int64_t e = 0; e < layer->shape.experts; e++) count += layer->expert_rank[e] == rank;
    return count;
}

int64_t ferry_layer_expert_id(const ferry_layer *layer, int rank, int64_t index) {
    if (layer == NULL || index < 0) return -1;
    for (int64_t e = 0; e < layer->shape.experts; e++)
        if (layer->expert_rank[e] == rank && index-- == 0) return e;
    return -1;
}

ferry_status ferry_forward(ferry_layer *layer, const ferry_forward_args *args) {
    FY_TRY(fy_check_forward(layer, args));
    FY_TRY(fy_fault_status(layer->comm));
    return fy_backend_of(layer->comm->config.backend)->forward(layer, args);
}

ferry_status ferry_backward(ferry_layer *layer, const ferry_backward_args *args) {
    FY_TRY(fy_check_backward(layer, args));
    FY_TRY(fy_fault_status(layer->comm));
    return fy_backend_of(layer->comm->config.backend)->backward(layer, args);
}

static void refresh(ferry_layer *layer) {
    const fy_backend *backend = fy_backend_of(layer->comm->config.backend);
    if (backend->refresh) backend->refresh(layer);
}

ferry_status ferry_layer_poll(ferry_layer *layer, ferry_report *report) {
    if (layer == NULL) return fy_fail(FERRY_E_INVALID, "ferry_layer_poll: layer is NULL");
    refresh(layer);
    ferry_report pending = layer->report;
    if (report) *report = pending;
    layer->report.status = FERRY_OK;
    layer->report.count = 0;
    return pending.status;
}

ferry_status ferry_layer_stats(ferry_layer *layer, ferry_stats *stats) {
    if (layer == NULL || stats == NULL) return fy_fail(FERRY_E_INVALID, "ferry_layer_stats: an argument is NULL");
    refresh(layer);
    *stats = layer->stats;
    stats->current_bytes = atomic_load(&layer->comm->memory.current);
    stats->peak_bytes = atomic_load(&layer->comm->memory.peak);
    return FERRY_OK;
}
