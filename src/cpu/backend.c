/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend: what a communicator, a layer and a context hold, and a call from entry to end. */
#include "core/tune.h"
#include "cpu/pool.h"
#include "cpu/state.h"

/* Of a communicator. */
typedef struct fy_cpu_comm {
    fy_pool *pool;
    const fy_kernels *kernels;
} fy_cpu_comm;

/* Two full waves of tiles for every compute worker, so that the last wave of a step costs little. */
static int64_t minibatch_rule(const fy_shape *s, int compute_workers) {
    int64_t narrow = fy_least(2 * s->intermediate, s->hidden);
    int64_t rows = 2 * (int64_t)compute_workers * FY_TILE_ROWS * FY_TILE_COLUMNS / narrow;
    return fy_round_to_blocks(fy_most(rows, FY_TILE_ROWS));
}

static ferry_status check_region(const char *what, int64_t bytes) {
    if (bytes < FY_LAYOUT_LIMIT) return FERRY_OK;
    return fy_fail(FERRY_E_MEMORY,
                   "layer config: %s would need 2^60 bytes or more; lower hidden, intermediate, shared, max_tokens or "
                   "slots",
                   what);
}

static ferry_status cpu_plan(fy_shape *shape, int comm_workers, int compute_workers, ferry_plan *plan) {
    if (shape->minibatch_rows == 0) shape->minibatch_rows = minibatch_rule(shape, compute_workers);
    if (shape->minibatch_rows > shape->ring_rows) shape->minibatch_rows = shape->ring_rows;
    fy_layout l = fy_cpu_layout(shape, (int64_t)comm_workers + compute_workers);
    FY_TRY(check_region("symmetric memory", l.symmetric.bytes));
    FY_TRY(check_region("the ring", l.ring.bytes));
    FY_TRY(check_region("row tables", l.table.bytes));
    FY_TRY(check_region("a context", l.context.bytes));
    plan->symmetric_bytes = (int64_t)fy_symmetric_bytes(shape->nranks, (size_t)l.symmetric.bytes);
    plan->ring_bytes = l.ring.bytes;
    plan->table_bytes = l.table.bytes + (int64_t)sizeof(fy_cpu_layer);
    plan->context_memory_bytes = l.context.bytes;
    plan->comm_workers = comm_workers;
    return FERRY_OK;
}

static ferry_status cpu_comm_create(ferry_comm *comm) {
    const fy_kernels *kernels;
    fy_cpu_comm *state;
    FY_TRY(fy_kernels_select(comm->config.isa, &kernels));
    FY_TRY(fy_alloc(&comm->memory, sizeof *state, "the CPU backend", (void **)&state));
    state->kernels = kernels;
    ferry_status status =
        fy_pool_create(&comm->memory, comm->config.comm_workers + comm->config.compute_workers, &state->pool);
    if (status != FERRY_OK) {
        fy_free(&comm->memory, state, sizeof *state);
        return status;
    }
    comm->backend = state;
    return FERRY_OK;
}

static void cpu_comm_destroy(ferry_comm *comm) {
    fy_cpu_comm *state = comm->backend;
    if (state == NULL) return;
    fy_pool_destroy(state->pool);
    fy_free(&comm->memory, state, sizeof *state);
    comm->backend = NULL;
}

static void cpu_layer_destroy(ferry_layer *layer) {
    fy_cpu_layer *state = layer->state;
    if (state == NULL) return;
    fy_memory *memory = &layer->comm->memory;
    fy_symmetric_destroy(layer->comm, state->symmetric);
    fy_free(memory, state->ring, (size_t)state->layout.ring.bytes);
    fy_free(memory, state->table, (size_t)state->layout.table.bytes);
    fy_free(memory, state, sizeof *state);
    layer->state = NULL;
}

static ferry_status allocate(ferry_layer *layer) {
    ferry_comm *comm = layer->comm;
    fy_cpu_layer *state;
    FY_TRY(fy_alloc(&comm->memory, sizeof *state, "a layer's state", (void **)&state));
    layer->state = state;
    state->layout = fy_cpu_layout(&layer->shape, comm->config.comm_workers + comm->config.compute_workers);
    state->kernels = ((fy_cpu_comm *)comm->backend)->kernels;
    FY_TRY(fy_alloc(&comm->memory, (size_t)state->layout.ring.bytes, "the ring", (void **)&state->ring));
    return fy_alloc(&comm->memory, (size_t)state->layout.table.bytes, "row tables", (void **)&state->table);
}

static ferry_status cpu_layer_create(ferry_layer *layer) {
    ferry_status status = fy_agree(layer->comm, allocate(layer), "creating a layer");
    if (status == FERRY_OK) {
        fy_cpu_layer *state = layer->state;
        status = fy_symmetric_create(layer->comm, (size_t)state->layout.symmetric.bytes, "a layer's symmetric memory",
                                     &state->symmetric);
    }
    if (status != FERRY_OK) cpu_layer_destroy(layer);
    return status;
}

static ferry_status cpu_context_create(ferry_context *context) {
    const ferry_layer *layer = context->layer;
    if (!context->owned) return FERRY_OK;
    return fy_alloc(&layer->comm->memory, (size_t)layer->plan.context_memory_bytes, "a context's memory",
                    (void **)&context->memory);
}

static void cpu_context_destroy(ferry_context *context) {
    const ferry_layer *layer = context->layer;
    if (context->owned) fy_free(&layer->comm->memory, context->memory, (size_t)layer->plan.context_memory_bytes);
}

/* What both directions start from. The call's lists are still empty. */
static void begin(fy_call *call, ferry_layer *layer, ferry_context *context) {
    fy_cpu_layer *state = layer->state;
    call->layer = layer;
    call->state = state;
    call->comm = layer->comm;
    call->context = context;
    call->shape = &layer->shape;
    call->kernels = state->kernels;
    call->number = ++state->calls;
    call->parity = (int)(call->number & 1);
    call->schedule = context ? fy_schedule_at(&state->layout.schedule, context->memory + state->layout.context.schedule)
                             : fy_schedule_at(&state->layout.schedule, state->table + state->layout.table.schedule);
    int64_t schedule_bytes = layer->stats.bytes_schedule; /* a backward reuses its forward's schedule */
    layer->stats = (ferry_stats){.size = sizeof layer->stats, .bytes_schedule = schedule_bytes};
}

static int job(void *argument, int worker) {
    fy_call *call = argument;
    unsigned char *scratch =
        fy_table(call, call->state->layout.table.scratch) + worker * call->state->layout.scratch_stride;
    if (worker >= call->layer->plan.comm_workers && fy_role_compute(call, worker, scratch) != 0) return 1;
    return fy_role_comm(call, worker, scratch) != 0;
}

static void fill_stats(fy_call *call) {
    ferry_stats *s = &call->layer->stats;
    for (int64_t e = 0; e < call->shape->local_experts; e++) s->rows += call->schedule.rows[e];
    s->macrobatches = fy_walk_macrobatches(call->walk);
    s->steps = call->steps;
    s->ring_high_water = fy_least(call->walk.blocks, call->walk.ring_blocks) * FY_BLOCK_ROWS;
    s->pulls = call->pulls;
    s->recomputed_rows = call->remade_rows;
    s->bytes_pull = call->bytes_pull;
    s->bytes_pull_remote = call->bytes_pull_remote;
    s->bytes_push = call->bytes_push;
    s->bytes_push_remote = call->bytes_push_remote;
    s->bytes_sum = call->bytes_sum;
    s->flop = call->flop;
}

/* Runs the roles over the work lists. `sums`: this call writes out or dx. */
static ferry_status run(fy_call *call, int sums) {
    call->sum_units = sums ? fy_divide_up(call->tokens, FY_SUM_TOKENS) : 0;
    if (!sums) { /* only weight gradients: nothing is pushed */
        call->next_push = call->steps;
        call->pushes_done = call->steps;
    }
    int left = fy_pool_run(((fy_cpu_comm *)call->comm->backend)->pool, job, call);
    FY_TRY(fy_fault_status(call->comm));
    if (left > 0)
        return fy_fail(FERRY_E_STATE, "%d workers of rank %d left the call because the observer said so", left,
                       call->shape->rank);
    fill_stats(call);
    return sums ? FERRY_OK : fy_role_schedule_part(call);
}

/* The schedule as a unit of the calling thread. */
static ferry_status enter(fy_call *call) {
    if (fy_call_begin(call, -1, FERRY_PHASE_SCHEDULE, -1, "schedule") == 0) return FERRY_OK;
    return fy_fail(FERRY_E_STATE, "rank %d left the call because the observer said so", call->shape->rank);
}

static ferry_status cpu_forward(ferry_layer *layer, const ferry_forward_args *args) {
    fy_call call = {.params = &args->params, .out = args->out, .keep = args->context != NULL};
    begin(&call, layer, args->context);
    fy_cpu_layer *state = layer->state;
    layer->forwards++;
    state->ring_forward = 0;
    layer->report.status = FERRY_OK;
    call.out_stride = args->out_stride ? args->out_stride : layer->shape.hidden;
    FY_TRY(enter(&call));
    FY_TRY(fy_role_schedule_forward(&call, args));
    if (args->context) args->context->phase = FY_CONTEXT_EMPTY;
    fy_build_work(&call);
    fy_call_end(&call, -1, FERRY_PHASE_SCHEDULE, -1, "schedule");
    FY_TRY(run(&call, 1));
    if (args->context) {
        args->context->phase = FY_CONTEXT_FILLED;
        args->context->forward = layer->forwards;
        args->context->tokens = call.tokens;
        state->ring_forward = layer->forwards;
    }
    const ferry_report *r = &layer->report;
    if (r->status != FERRY_E_BAD_ID) return FERRY_OK;
    return fy_fail(FERRY_E_BAD_ID,
                   "ferry_forward: %lld ids are outside -1..%lld and count as -1; the first is %lld at rank %d, token "
                   "%lld, slot %lld",
                   (long long)r->count, (long long)layer->shape.experts - 1, (long long)r->id, r->rank,
                   (long long)r->token, (long long)r->slot);
}

static ferry_status cpu_backward(ferry_layer *layer, const ferry_backward_args *args) {
    fy_call call = {.params = &args->params,
                    .grads = &args->grads,
                    .backward = 1,
                    .parts = args->parts,
                    .out = args->dx,
                    .dweights = args->dweights,
                    .ready = args->parts & FERRY_BACKWARD_WEIGHT ? args->ready : NULL,
                    .ready_value = args->ready_value,
                    .remake_shared = layer->shape.context_rows == 0};
    begin(&call, layer, args->context);
    fy_cpu_layer *state = layer->state;
    call.out_stride = args->dx_stride ? args->dx_stride : layer->shape.hidden;
    FY_TRY(enter(&call));
    FY_TRY(fy_role_schedule_backward(&call, args));
    fy_build_work(&call);
    fy_ready_unwanted(&call);
    fy_call_end(&call, -1, FERRY_PHASE_SCHEDULE, -1, "schedule");
    /* The ring ends with the last macrobatch: still this forward's first only when there is no other. */
    state->ring_forward = 0;
    FY_TRY(run(&call, (args->parts & FERRY_BACKWARD_DATA) != 0));
    if (fy_walk_macrobatches(call.walk) <= 1) state->ring_forward = args->context->forward;
    return FERRY_OK;
}

static void machine(const ferry_comm *comm, char *to, size_t room) {
    (void)comm;
    fy_processor_name(to, room);
}

const fy_backend fy_backend_cpu = {.name = "cpu",
                                   .record_bytes = sizeof(fy_published),
                                   .machine = machine,
                                   .plan = cpu_plan,
                                   .comm_create = cpu_comm_create,
                                   .comm_destroy = cpu_comm_destroy,
                                   .layer_create = cpu_layer_create,
                                   .layer_destroy = cpu_layer_destroy,
                                   .context_create = cpu_context_create,
                                   .context_destroy = cpu_context_destroy,
                                   .forward = cpu_forward,
                                   .backward = cpu_backward};
