/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of a backward, and of a forward that fills a context, for backend.c. A call's tables of rows are the
 * context's own, so a backward sorts nothing; maps of the context, weights and gradients are made for each call.
 */
#include "cuda/launch_backward.h"

#include "cuda/error.h"
#include "cuda/kernels.h"
#include "cuda/kernels_backward.h"
#include "cuda/maps.h"
#include "cuda/now.h"
#include "rules/ring.h"

#include <string.h>

static ferry_status map_rows(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, const char *name) {
    fy_gpu_array a = {data, 0, rows, columns, 0, columns, name, FERRY_BF16};
    return fy_gpu_map(map, a, FY_BLOCK_ROWS);
}

/* Maps of memory that belongs to the layer. */
static ferry_status map_own_memory(fy_gpu_gradient *d) {
    const fy_shape *s = &d->engine->shape;
    const fy_gpu_call *c = &d->engine->call;
    fy_gpu_backward *b = &d->call;
    int64_t rows = s->ring_rows, tokens = fy_round_to_blocks(s->max_tokens);
    FY_TRY(map_rows(&b->routed.x[0], c->table.x_ring, rows, s->hidden, "x ring"));
    FY_TRY(map_rows(&b->routed.g[0], b->table.g_ring, rows, s->intermediate, "g ring"));
    FY_TRY(map_rows(&b->routed.u[0], b->table.u_ring, rows, s->intermediate, "u ring"));
    FY_TRY(map_rows(&b->routed.dout, b->table.dout_ring, rows, s->hidden, "dout ring"));
    FY_TRY(map_rows(&b->routed.dg, b->table.dg_ring, rows, s->intermediate, "dg ring"));
    FY_TRY(map_rows(&b->routed.du, b->table.du_ring, rows, s->intermediate, "du ring"));
    FY_TRY(map_rows(&b->routed.wh, c->table.h_ring, rows, s->intermediate, "w h ring"));
    if (s->shared == 0 || s->max_tokens == 0) return FERRY_OK;
    fy_gpu_backward_maps *m = &b->shared_expert;
    FY_TRY(map_rows(&m->dout, c->peer[c->rank] + b->at.dout, tokens, s->hidden, "staged dout"));
    FY_TRY(map_rows(&m->dg, b->table.shared_dg, tokens, s->shared, "shared dg"));
    FY_TRY(map_rows(&m->du, b->table.shared_du, tokens, s->shared, "shared du"));
    return map_rows(&m->wh, b->table.shared_wh, tokens, s->shared, "shared w h");
}

ferry_status fy_gpu_gradient_create(fy_gpu_gradient *d, fy_gpu_engine *engine) {
    memset(d, 0, sizeof *d);
    const fy_shape *s = &engine->shape;
    d->engine = engine;
    d->bytes = fy_gpu_lay_backward(s, NULL, &d->call.table);
    fy_gpu_lay_backward_symmetric(s, &d->call.at);
    d->call.context_blocks = (int32_t)(s->context_rows / FY_BLOCK_ROWS);
    d->call.staged = s->nranks > 1 || s->shared > 0;
    d->call.remake_shared = s->context_rows == 0;
    FY_CUDA(cudaMalloc((void **)&d->memory, (size_t)d->bytes), "allocating the backward's rows on the device");
    fy_gpu_lay_backward(s, d->memory, &d->call.table);
    const fy_gpu_backward_state none = {0};
    cudaError_t error = fy_copy_now(d->call.table.state, &none, sizeof none);
    ferry_status status = error == cudaSuccess ? map_own_memory(d) : FERRY_OK;
    if (error == cudaSuccess) error = fy_load_backward();
    if (error != cudaSuccess)
        status = fy_fail(FERRY_E_CUDA, "loading the backward's kernels: %s", cudaGetErrorString(error));
    if (status != FERRY_OK) {
        fy_gpu_gradient_destroy(d);
        return status;
    }
    engine->call.context_blocks = d->call.context_blocks;
    engine->call.least_context_blocks = (int32_t)(s->least_context_rows / FY_BLOCK_ROWS);
    engine->call.ring_call = &d->call.table.state->ring_call;
    return FERRY_OK;
}

void fy_gpu_gradient_destroy(fy_gpu_gradient *d) {
    fy_chain_destroy(&d->forward);
    for (int ready = 0; ready < 2; ready++) fy_chain_destroy(&d->backward[ready]);
    cudaFree(d->memory);
    memset(d, 0, sizeof *d);
}

/* The call's tables of rows become those of the context. */
static void use_context(fy_gpu_call *c, const fy_gpu_context *context) {
    c->table.first_block = context->first_block;
    c->table.first_tile = context->first_tile;
    c->table.expert_rows = context->expert_rows;
    c->table.macro_tile = context->macro_tile;
    c->table.source = context->source;
    c->table.slot_row = context->slot_row;
}

/* x, g, u of saved rows; of the shared expert, all of them. */
static ferry_status map_context(const fy_gpu_gradient *d, fy_gpu_backward *b) {
    const fy_shape *s = &d->engine->shape;
    int64_t rows = s->context_rows, tokens = fy_round_to_blocks(s->max_tokens);
    if (rows > 0) {
        FY_TRY(map_rows(&b->routed.x[1], b->context.x, rows, s->hidden, "saved x"));
        FY_TRY(map_rows(&b->routed.g[1], b->context.g, rows, s->intermediate, "saved g"));
        FY_TRY(map_rows(&b->routed.u[1], b->context.u, rows, s->intermediate, "saved u"));
    }
    if (s->shared == 0 || s->max_tokens == 0) return FERRY_OK;
    const uint16_t *g = rows > 0 ? b->context.shared_g : b->table.shared_g;
    const uint16_t *u = rows > 0 ? b->context.shared_u : b->table.shared_u;
    FY_TRY(map_rows(&b->shared_expert.x[0], b->context.own_x, tokens, s->hidden, "own x"));
    FY_TRY(map_rows(&b->shared_expert.g[0], g, tokens, s->shared, "shared g"));
    return map_rows(&b->shared_expert.u[0], u, tokens, s->shared, "shared u");
}

ferry_status fy_gpu_gradient_forward(fy_gpu_gradient *d, uint8_t *context, const ferry_forward_args *args) {
    const fy_gpu_engine *e = d->engine;
    cudaStream_t stream = (cudaStream_t)args->stream;
    fy_gpu_call c;
    fy_gpu_backward b = d->call;
    FY_TRY(fy_gpu_engine_describe(d->engine, args, &c));
    fy_gpu_lay_context(&e->shape, context, &b.context);
    use_context(&c, &b.context);
    FY_TRY(map_context(d, &b));
    c.context_filled = args->context->phase == FY_CONTEXT_FILLED;
    c.saved_x = b.context.x;
    c.keep.x = b.routed.x[1];
    for (int saved = 0; saved < 2; saved++) {
        c.keep.g[saved] = b.routed.g[saved];
        c.keep.u[saved] = b.routed.u[saved];
    }
    c.keep_shared.g[1] = b.shared_expert.g[0];
    c.keep_shared.u[1] = b.shared_expert.u[0];
    fy_launcher to;
    FY_CUDA(fy_chain_begin(&to, c.trace.span ? NULL : &d->forward, stream), "beginning a forward with a context");
    cudaError_t error = fy_launch_schedule(&c, e->knobs.sms, &to);
    if (error == cudaSuccess) error = fy_launch_keep(&c, &b.context, b.table.state, e->knobs.sms, &to);
    if (error == cudaSuccess) error = fy_launch_forward(&c, e->knobs.sms, &to);
    FY_CUDA(fy_chain_end(&to, stream, error), "launching a forward with a context");
    return FERRY_OK;
}

/* A matrix of each expert: one map over all, or one for each, copied to the device in stream order. */
typedef struct family {
    const ferry_matrices *of;
    int64_t count, rows, columns;
    CUtensorMap *all;  /* host side of the one map */
    CUtensorMap *each; /* device side of the many; NULL: there is only one matrix */
    const char *name;
} family;

static ferry_status map_one(CUtensorMap *map, const family *f, const void *data, int64_t count) {
    fy_gpu_array a = {data, count, f->rows, f->columns, f->of->expert_stride, f->of->row_stride, f->name, f->of->dtype};
    return fy_gpu_map(map, a, FY_BLOCK_ROWS);
}

static ferry_status map_family(const family *f, int as_table, cudaStream_t stream) {
    const ferry_matrices *m = f->of;
    if (f->count == 0) return FERRY_OK;
    if (!as_table) return map_one(f->all, f, m->base, f->count);
    int64_t size = m->dtype == FERRY_F32 ? 4 : 2;
    CUtensorMap map[FY_MAP_BATCH];
    for (int64_t first = 0; first < f->count; first += FY_MAP_BATCH) {
        int n = (int)(f->count - first < FY_MAP_BATCH ? f->count - first : FY_MAP_BATCH);
        for (int i = 0; i < n; i++) {
            int64_t e = first + i;
            const void *data = m->table ? m->table[e] : (const uint8_t *)m->base + e * m->expert_stride * size;
            FY_TRY(map_one(&map[i], f, data, 1));
        }
        FY_CUDA(fy_launch_maps(f->each + first, map, n, stream), "copying tensor maps");
    }
    return FERRY_OK;
}

static ferry_status map_weights(const fy_gpu_gradient *d, const ferry_weights *w, fy_gpu_backward *b,
                                cudaStream_t stream) {
    const fy_shape *s = &d->engine->shape;
    int64_t local = s->local_experts, shared = s->shared > 0;
    fy_gpu_backward_maps *r = &b->routed, *e = &b->shared_expert;
    CUtensorMap *each = b->table.weight_map;
    const family routed[3] = {
        {&w->gate, local, s->intermediate, s->hidden, &r->gate, each, "gate weights"},
        {&w->up, local, s->intermediate, s->hidden, &r->up, each + local, "up weights"},
        {&w->down, local, s->hidden, s->intermediate, &r->down, each + 2 * local, "down weights"}};
    const family own[3] = {{&w->shared_gate, shared, s->shared, s->hidden, &e->gate, NULL, "shared gate weights"},
                           {&w->shared_up, shared, s->shared, s->hidden, &e->up, NULL, "shared up weights"},
                           {&w->shared_down, shared, s->hidden, s->shared, &e->down, NULL, "shared down weights"}};
    b->tables_of_weights = w->gate.table || w->up.table || w->down.table;
    for (int i = 0; i < 3; i++) {
        FY_TRY(map_family(&routed[i], b->tables_of_weights, stream));
        if (own[i].of->table)
            return fy_fail(FERRY_E_UNSUPPORTED, "%s: a table of one pointer, expected base", own[i].name);
        FY_TRY(map_family(&own[i], 0, stream));
    }
    return FERRY_OK;
}

/* Adds an expert's tiles to `*tickets`. */
static ferry_status map_gradient(const ferry_gradient *g, family f, fy_gpu_to *to, int32_t *tickets,
                                 cudaStream_t stream) {
    to->wanted = f.count > 0 && (g->to.base || g->to.table);
    if (!to->wanted) return FERRY_OK;
    *tickets += (int32_t)(fy_divide_up(f.rows, FY_TILE_M) * fy_divide_up(f.columns, FY_TILE_N));
    to->is_f32 = g->to.dtype == FERRY_F32;
    to->add = g->beta != 0.0f;
    to->table = g->to.table != NULL;
    if (to->table && f.each == NULL)
        return fy_fail(FERRY_E_UNSUPPORTED, "%s: a table of one pointer, expected base", f.name);
    f.of = &g->to;
    return map_family(&f, to->table, stream);
}

static ferry_status map_gradients(const fy_gpu_gradient *d, const ferry_gradients *g, fy_gpu_backward *b,
                                  cudaStream_t stream) {
    const fy_shape *s = &d->engine->shape;
    int64_t local = s->local_experts, one_shared = s->shared > 0;
    const ferry_gradient *routed[3] = {&g->gate, &g->up, &g->down};
    const ferry_gradient *own[3] = {&g->shared_gate, &g->shared_up, &g->shared_down};
    static const char *const name[2][3] = {{"gate gradients", "up gradients", "down gradients"},
                                           {"shared gate gradient", "shared up gradient", "shared down gradient"}};
    for (int i = 0; i < 3; i++) {
        int64_t rows = i < 2 ? s->intermediate : s->hidden, columns = i < 2 ? s->hidden : s->intermediate;
        family f = {NULL, local, rows, columns, &b->routed.to[i], b->table.to_map + i * local, name[0][i]};
        FY_TRY(map_gradient(routed[i], f, &b->to[0][i], &b->weight_tickets[0], stream));
        rows = i < 2 ? s->shared : s->hidden;
        columns = i < 2 ? s->hidden : s->shared;
        family one = {NULL, one_shared, rows, columns, &b->shared_expert.to[i], NULL, name[1][i]};
        FY_TRY(map_gradient(own[i], one, &b->to[1][i], &b->weight_tickets[1], stream));
    }
    return FERRY_OK;
}

ferry_status fy_gpu_gradient_describe(fy_gpu_gradient *d, uint8_t *context, const ferry_backward_args *args,
                                      fy_gpu_call *c, fy_gpu_backward *b) {
    const fy_shape *s = &d->engine->shape;
    cudaStream_t stream = (cudaStream_t)args->stream;
    *c = d->engine->call;
    *b = d->call;
    fy_gpu_lay_context(s, context, &b->context);
    use_context(c, &b->context);
    b->parts = args->parts;
    b->dout = args->dout;
    b->dout_stride = args->dout_stride ? args->dout_stride : s->hidden;
    b->dx = args->dx;
    b->dx_stride = args->dx_stride ? args->dx_stride : s->hidden;
    b->dweights = args->dweights;
    b->ready = args->parts & FERRY_BACKWARD_WEIGHT ? args->ready : NULL;
    b->ready_value = args->ready_value;
    if (b->dout_stride % 8 || b->dx_stride % 8 || (uintptr_t)b->dout % 16 || (uintptr_t)b->dx % 16)
        return fy_fail(
            FERRY_E_UNSUPPORTED,
            "backward: dout %p stride %lld, dx %p stride %lld: expected addresses of 16 bytes and strides of 8 "
            "elements",
            args->dout, (long long)b->dout_stride, args->dx, (long long)b->dx_stride);
    FY_TRY(map_context(d, b));
    FY_TRY(map_weights(d, &args->params, b, stream));
    return args->parts & FERRY_BACKWARD_WEIGHT ? map_gradients(d, &args->grads, b, stream) : FERRY_OK;
}

ferry_status fy_gpu_gradient_backward(fy_gpu_gradient *d, uint8_t *context, const ferry_backward_args *args) {
    fy_gpu_call c;
    fy_gpu_backward b;
    cudaStream_t stream = (cudaStream_t)args->stream;
    FY_TRY(fy_gpu_gradient_describe(d, context, args, &c, &b));
    fy_launcher to;
    fy_chain *chain = c.trace.span ? NULL : &d->backward[b.ready != NULL];
    FY_CUDA(fy_chain_begin(&to, chain, stream), "beginning a backward");
    cudaError_t error = fy_launch_backward_schedule(&c, &b, d->engine->knobs.sms, &to);
    if (error == cudaSuccess) error = fy_launch_backward(&c, &b, d->engine->knobs.sms, &to);
    FY_CUDA(fy_chain_end(&to, stream, error), "launching a backward");
    return FERRY_OK;
}
