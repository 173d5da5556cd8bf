/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of a forward, for backend.c. Creation fills in what never changes; a call takes a copy of that, adds
 * the caller's tensors and enqueues the launches. launch_backward.c describes its forward with the same function.
 */
#include "cuda/engine.h"

#include "cuda/error.h"
#include "cuda/kernels.h"
#include "cuda/maps.h"
#include "cuda/now.h"
#include "cuda/sides.h"
#include "rules/tile.h"

#include <stdlib.h>
#include <string.h>

static ferry_status allocate(fy_gpu_engine *e) {
    e->table_bytes = fy_gpu_lay_tables(&e->shape, NULL, &e->call.table);
    e->ring_bytes = fy_gpu_lay_ring(&e->shape, NULL, &e->call.table);
    FY_CUDA(cudaMalloc((void **)&e->tables, (size_t)e->table_bytes), "allocating row tables on the device");
    FY_CUDA(cudaMalloc((void **)&e->ring, (size_t)e->ring_bytes), "allocating the ring on the device");
    FY_CUDA(cudaHostAlloc((void **)&e->page, sizeof *e->page, cudaHostAllocMapped | cudaHostAllocPortable),
            "allocating the report page");
    memset(e->page, 0, sizeof *e->page);
    fy_gpu_lay_tables(&e->shape, e->tables, &e->call.table);
    fy_gpu_lay_ring(&e->shape, e->ring, &e->call.table);
    FY_CUDA(cudaHostGetDevicePointer((void **)&e->call.page, e->page, 0), "mapping the report page");
    FY_CUDA(fy_clear_now(e->tables, (size_t)e->table_bytes), "clearing row tables");
    return FERRY_OK;
}

/* expert_local [experts], local_expert [local], sides and the first "no bad slot". */
static ferry_status fill_tables(fy_gpu_engine *e, const int32_t *expert_rank) {
    int64_t experts = e->shape.experts, local = 0;
    uint8_t side[FY_GPU_MAX_SMS];
    FY_TRY(fy_gpu_sides(e->device, side));
    int32_t *map = malloc((size_t)(2 * experts) * sizeof *map);
    if (map == NULL) return fy_fail(FERRY_E_MEMORY, "no memory for the map of %lld experts", (long long)experts);
    for (int64_t i = 0; i < experts; i++) {
        map[i] = expert_rank[i] == e->shape.rank ? (int32_t)local : -1;
        if (map[i] >= 0) map[experts + local++] = (int32_t)i;
    }
    const uint32_t no_slot = UINT32_MAX;
    cudaError_t error = fy_copy_now(e->call.table.expert_local, map, (size_t)experts * 4);
    if (error == cudaSuccess) error = fy_copy_now(e->call.table.expert_rank, expert_rank, (size_t)experts * 4);
    if (error == cudaSuccess && local)
        error = fy_copy_now(e->call.table.local_expert, map + experts, (size_t)local * 4);
    if (error == cudaSuccess) error = fy_copy_now(&e->call.table.state->bad_slot, &no_slot, sizeof no_slot);
    if (error == cudaSuccess) error = fy_copy_now(e->call.table.side, side, sizeof side);
    free(map);
    FY_CUDA(error, "copying the expert map and the sides to the device");
    return FERRY_OK;
}

/* Maps of memory that is the engine's own. */
static ferry_status map_own_memory(fy_gpu_engine *e) {
    const fy_shape *s = &e->shape;
    fy_gpu_call *c = &e->call;
    fy_gpu_array x = {c->table.x_ring, 0, s->ring_rows, s->hidden, 0, s->hidden, "x ring", FERRY_BF16};
    fy_gpu_array h = {c->table.h_ring, 0, s->ring_rows, s->intermediate, 0, s->intermediate, "h ring", FERRY_BF16};
    FY_TRY(fy_gpu_map(&c->routed.x, x, FY_TILE_M));
    FY_TRY(fy_gpu_map(&c->routed.x_short, x, FY_BLOCK_ROWS));
    FY_TRY(fy_gpu_map(&c->routed.h, h, FY_TILE_M));
    FY_TRY(fy_gpu_map(&c->routed.h_short, h, FY_BLOCK_ROWS));
    if (s->shared == 0 || s->max_tokens == 0) return FERRY_OK;
    fy_gpu_array staged = {
        c->peer[c->rank] + c->at.x, 0, s->max_tokens, s->hidden, 0, s->hidden, "staged tokens", FERRY_BF16};
    fy_gpu_array sh = {c->table.shared_h, 0, s->max_tokens, s->shared, 0, s->shared, "shared h", FERRY_BF16};
    FY_TRY(fy_gpu_map(&c->shared_expert.x, staged, FY_TILE_M));
    FY_TRY(fy_gpu_map(&c->shared_expert.x_short, staged, FY_BLOCK_ROWS));
    FY_TRY(fy_gpu_map(&c->shared_expert.h, sh, FY_TILE_M));
    return fy_gpu_map(&c->shared_expert.h_short, sh, FY_BLOCK_ROWS);
}

static void fill_call(fy_gpu_engine *e, uint8_t *const *peer, double enter_timeout_s, double progress_timeout_s) {
    const fy_shape *s = &e->shape;
    fy_gpu_call *c = &e->call;
    c->rank = s->rank;
    c->ranks = s->nranks;
    c->experts = (int32_t)s->experts;
    c->local_experts = (int32_t)s->local_experts;
    c->slots = (int32_t)s->slots;
    c->max_tokens = (int32_t)s->max_tokens;
    c->hidden = (int32_t)s->hidden;
    c->intermediate = (int32_t)s->intermediate;
    c->shared = (int32_t)s->shared;
    c->ring_blocks = (int32_t)(s->ring_rows / FY_BLOCK_ROWS);
    c->mini_tiles = (int32_t)fy_divide_up(s->minibatch_rows, FY_TILE_M);
    int64_t steps = FY_HEAD_BYTES / ((int64_t)c->mini_tiles * FY_TILE_M * s->hidden * 2);
    if (s->nranks > 1) steps = 1; /* rows of peers take longer: the products had better begin */
    c->head_tiles = c->all_head_tiles = c->mini_tiles * (int32_t)(steps > 1 ? steps : 1);
    /* So many steps that about one of them has tokens of this rank alone, as long as their tiles can be sorted. */
    if (s->nranks > 1 && c->mini_tiles <= FY_HEAD_SORTED)
        c->all_head_tiles = c->mini_tiles * (int32_t)fy_least(s->nranks + 1, FY_HEAD_SORTED / c->mini_tiles);
    c->max_blocks = (int32_t)s->max_blocks;
    c->comm_warps = e->knobs.comm_warps;
    c->comm_sms = e->knobs.comm_sms;
    c->fan_out = e->knobs.fan_out;
    c->limit = s->limit > 0 ? s->limit : FY_NO_LIMIT;
    c->staged = s->nranks > 1 || s->shared > 0;
    c->enter_timeout_ns = (uint64_t)(enter_timeout_s * 1e9);
    c->progress_timeout_ns = (uint64_t)(progress_timeout_s * 1e9);
    for (int r = 0; r < s->nranks; r++) c->peer[r] = peer[r];
    fy_gpu_lay_symmetric(s, &c->at);
}

ferry_status fy_gpu_engine_create(fy_gpu_engine *e, const fy_shape *shape, const fy_gpu_knobs *knobs, int device,
                                  const int32_t *expert_rank, uint8_t *const *peer, double enter_timeout_s,
                                  double progress_timeout_s) {
    memset(e, 0, sizeof *e);
    e->shape = *shape;
    e->knobs = *knobs;
    e->device = device;
    fill_call(e, peer, enter_timeout_s, progress_timeout_s);
    ferry_status status = allocate(e);
    if (status == FERRY_OK) status = fill_tables(e, expert_rank);
    if (status == FERRY_OK) status = map_own_memory(e);
    if (status == FERRY_OK && (fy_load_schedule() != cudaSuccess || fy_load_forward() != cudaSuccess))
        status = fy_fail(FERRY_E_CUDA, "loading the kernels: %s; the device must be of compute capability 9.0",
                         cudaGetErrorString(cudaGetLastError()));
    if (status != FERRY_OK) fy_gpu_engine_destroy(e);
    return status;
}

void fy_gpu_engine_destroy(fy_gpu_engine *e) {
    fy_chain_destroy(&e->forward);
    cudaFree(e->tables);
    cudaFree(e->ring);
    cudaFreeHost(e->page);
    memset(e, 0, sizeof *e);
}

static ferry_status map_weights(CUtensorMap *map, const ferry_matrices *m, int64_t matrices, int64_t rows,
                                int64_t columns, int box_rows, const char *name) {
    fy_gpu_array a = {m->base, matrices, rows, columns, m->expert_stride, m->row_stride, name, FERRY_BF16};
    return fy_gpu_map(map, a, box_rows);
}

/* One map per expert and kind of weight, copied to the device in stream order. */
static ferry_status map_weight_tables(fy_gpu_engine *e, const ferry_weights *w, cudaStream_t stream) {
    const fy_shape *s = &e->shape;
    const ferry_matrices *kind[3] = {&w->gate, &w->up, &w->down};
    const char *name[3] = {"gate weights", "up weights", "down weights"};
    for (int k = 0; k < 3; k++) {
        CUtensorMap map[FY_MAP_BATCH];
        for (int64_t first = 0; first < s->local_experts; first += FY_MAP_BATCH) {
            int count = (int)(s->local_experts - first < FY_MAP_BATCH ? s->local_experts - first : FY_MAP_BATCH);
            for (int i = 0; i < count; i++) {
                const ferry_matrices *m = kind[k];
                const uint16_t *data =
                    m->table ? m->table[first + i] : (const uint16_t *)m->base + (first + i) * m->expert_stride;
                fy_gpu_array a = {data,
                                  1,
                                  k < 2 ? s->intermediate : s->hidden,
                                  k < 2 ? s->hidden : s->intermediate,
                                  0,
                                  m->row_stride,
                                  name[k],
                                  FERRY_BF16};
                FY_TRY(fy_gpu_map(&map[i], a, k < 2 ? FY_HALF_N : FY_TILE_N));
            }
            FY_CUDA(fy_launch_maps(e->call.table.weight_map + k * s->local_experts + first, map, count, stream),
                    "copying tensor maps of weights");
        }
    }
    return FERRY_OK;
}

static ferry_status map_all_weights(fy_gpu_engine *e, const ferry_weights *w, fy_gpu_call *c, cudaStream_t stream) {
    const fy_shape *s = &e->shape;
    int64_t local = s->local_experts;
    c->tables_of_weights = w->gate.table || w->up.table || w->down.table;
    if (local > 0 && c->tables_of_weights) FY_TRY(map_weight_tables(e, w, stream));
    if (local > 0 && !c->tables_of_weights) {
        FY_TRY(map_weights(&c->routed.gate, &w->gate, local, s->intermediate, s->hidden, FY_HALF_N, "gate weights"));
        FY_TRY(map_weights(&c->routed.up, &w->up, local, s->intermediate, s->hidden, FY_HALF_N, "up weights"));
        FY_TRY(map_weights(&c->routed.down, &w->down, local, s->hidden, s->intermediate, FY_TILE_N, "down weights"));
    }
    if (s->shared == 0) return FERRY_OK;
    FY_TRY(map_weights(&c->shared_expert.gate, &w->shared_gate, 1, s->shared, s->hidden, FY_HALF_N,
                       "shared gate weights"));
    FY_TRY(map_weights(&c->shared_expert.up, &w->shared_up, 1, s->shared, s->hidden, FY_HALF_N, "shared up weights"));
    return map_weights(&c->shared_expert.down, &w->shared_down, 1, s->hidden, s->shared, FY_TILE_N,
                       "shared down weights");
}

/* N is read in stream order: where it lies on the device by the kernels, else through a copy. */
static ferry_status find_tokens(const fy_gpu_engine *e, const int32_t *tokens, fy_gpu_call *c, cudaStream_t stream) {
    struct cudaPointerAttributes a;
    FY_CUDA(cudaPointerGetAttributes(&a, tokens), "looking at num_tokens");
    if (a.type == cudaMemoryTypeDevice) {
        c->tokens = tokens;
        return FERRY_OK;
    }
    FY_CUDA(cudaMemcpyAsync(e->call.table.tokens_copy, tokens, sizeof *tokens, cudaMemcpyHostToDevice, stream),
            "copying num_tokens");
    c->tokens = e->call.table.tokens_copy;
    return FERRY_OK;
}

ferry_status fy_gpu_engine_describe(fy_gpu_engine *e, const ferry_forward_args *args, fy_gpu_call *call) {
    fy_gpu_call c = e->call;
    cudaStream_t stream = (cudaStream_t)args->stream;
    c.x = args->x;
    c.x_stride = args->x_stride ? args->x_stride : e->shape.hidden;
    c.out = args->out;
    c.out_stride = args->out_stride ? args->out_stride : e->shape.hidden;
    if (c.x_stride % 8 || c.out_stride % 8 || (uintptr_t)c.x % 16 || (uintptr_t)c.out % 16)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "forward: x %p stride %lld, out %p stride %lld: expected addresses of 16 bytes and strides of 8 "
                       "elements",
                       args->x, (long long)c.x_stride, args->out, (long long)c.out_stride);
    c.ids = args->ids;
    c.ids_are_64 = args->ids_dtype == FERRY_I64;
    c.weights = args->weights;
    c.expert_rows = args->expert_rows;
    c.load = args->load;
    FY_TRY(map_all_weights(e, &args->params, &c, stream));
    FY_TRY(find_tokens(e, args->num_tokens, &c, stream));
    *call = c;
    return FERRY_OK;
}

ferry_status fy_gpu_engine_forward(fy_gpu_engine *e, const ferry_forward_args *args) {
    fy_gpu_call c;
    cudaStream_t stream = (cudaStream_t)args->stream;
    FY_TRY(fy_gpu_engine_describe(e, args, &c));
    fy_launcher to;
    FY_CUDA(fy_chain_begin(&to, c.trace.span ? NULL : &e->forward, stream), "beginning a forward");
    cudaError_t error = fy_launch_schedule(&c, e->knobs.sms, &to);
    if (error == cudaSuccess) error = fy_launch_forward(&c, e->knobs.sms, &to);
    FY_CUDA(fy_chain_end(&to, stream, error), "launching a forward");
    return FERRY_OK;
}

ferry_status fy_gpu_engine_fault(const fy_gpu_engine *e) {
    const volatile fy_gpu_page *p = e->page;
    if (!p->fault) return FERRY_OK;
    return fy_fail(
        FERRY_E_TIMEOUT,
        "rank %d: a wait on the device passed its deadline: site %d, rank %d awaited, expected %lld, seen %lld",
        e->shape.rank, p->site, p->awaited_rank, (long long)p->expected, (long long)p->seen);
}
