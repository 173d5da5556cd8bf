/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are refused: by name, on every rank, without a hang, and - where that is promised - without harm. */
#include "cli/check/life.h"

#include <string.h>

#define SIZES .hidden = 72, .intermediate = 40, .experts = 7, .slots = 2, .shared = 24

static const check_problem plain_problem = {.seed = 21, .tokens = 50, SIZES};

/* ---- Too many tokens ---- */

/* Rank 1 first says that it has one token more than max_tokens; then the ranks do the batch properly. */
static void too_many_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    const check_case *c = job->c;
    if (!check_rank_open(&r, c, job->batch, job->way, bootstrap)) return;
    if (!check_shard_make(c, job->batch, job->way, rank, r.comm, &shard)) {
        check_rank_close(&r);
        return;
    }
    if (rank == 1) shard.num_tokens = (int32_t)job->way->max_tokens + 1;
    ferry_status status = ferry_forward(r.layer, &shard.forward);
    check_status(c, rank, status, FERRY_E_TOO_MANY_TOKENS, "a forward of too many tokens on rank 1");
    if (!check_shard_untouched(&shard)) check_fail(c, "rank %d: the refused call wrote to an output", rank);
    ferry_report report = {.size = sizeof report};
    status = ferry_layer_poll(r.layer, &report);
    check_status(c, rank, status, FERRY_E_TOO_MANY_TOKENS, "ferry_layer_poll");
    if (report.rank != 1 || report.count != job->way->max_tokens + 1 || report.token != -1 || report.slot != -1) {
        check_fail(c, "rank %d: the report says rank %d count %lld token %lld slot %lld", rank, report.rank,
                   (long long)report.count, (long long)report.token, (long long)report.slot);
    }
    shard.num_tokens = (int32_t)shard.tokens;
    if (check_status(c, rank, ferry_comm_error(r.comm), FERRY_OK, "ferry_comm_error") &&
        check_rank_context(&r, &context) && check_rank_forward(&r, &shard, context, NULL) &&
        check_rank_backward(&r, &shard, context, NULL)) {
        check_shard_gather(&shard, job->result);
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

/* Runs a body on a batch and way, and compares what it gathered with the references. */
static void run_body(const check_case *c, const check_problem *problem, check_way way, check_rank_body *body,
                     void *user) {
    check_batch batch;
    way.backend = (ferry_backend)c->options->backend;
    CHECK_OR_RETURN(, c, check_batch_make(problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, user};
    if (result) check_launch(&job, body, 0);
    if (result && !check_failed(c)) check_against_reference(c, &batch, &way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

static void too_many_tokens(const check_case *c) {
    check_way way = {.ranks = 3, .processes = c->argument != NULL, .max_tokens = 17};
    run_body(c, &plain_problem, way, too_many_body, NULL);
}

/* ---- Ranks that disagree about a layer ---- */

typedef struct mismatch {
    const char *name;
    void (*change)(ferry_layer_config *config);
} mismatch;

static int32_t backwards_map[] = {2, 2, 2, 1, 1, 0, 0};

static void other_hidden(ferry_layer_config *config) { config->hidden++; }
static void other_intermediate(ferry_layer_config *config) { config->intermediate--; }
static void other_shared(ferry_layer_config *config) { config->shared = 0; }
static void other_experts(ferry_layer_config *config) { config->experts++; }
static void other_slots(ferry_layer_config *config) { config->slots = 1; }
static void other_max_tokens(ferry_layer_config *config) { config->max_tokens += 100; }
static void other_limit(ferry_layer_config *config) { config->swiglu_limit = 7; }
static void other_ring(ferry_layer_config *config) { config->ring_rows = 640; }
static void other_minibatch(ferry_layer_config *config) { config->minibatch_rows = 640; }
static void other_context(ferry_layer_config *config) { config->context_rows = 640; }
static void other_map(ferry_layer_config *config) { config->expert_rank = backwards_map; }

static const mismatch mismatches[] = {
    {"H", other_hidden},
    {"I", other_intermediate},
    {"S", other_shared},
    {"E", other_experts},
    {"K", other_slots},
    {"max_tokens", other_max_tokens},
    {"swiglu_limit", other_limit},
    {"ring_rows", other_ring},
    {"minibatch_rows", other_minibatch},
    {"context_rows", other_context},
    {"the expert map", other_map},
};

static void mismatch_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    const mismatch *m = job->user;
    ferry_comm_config comm_config;
    ferry_layer_config config;
    ferry_comm *comm = NULL;
    ferry_layer *layer = NULL;
    check_comm_config(job->way, bootstrap, &comm_config);
    if (!check_status(job->c, rank, ferry_comm_create(&comm_config, &comm), FERRY_OK, "ferry_comm_create")) return;
    check_layer_config(job->batch, job->way, NULL, &config);
    if (rank == 1) m->change(&config);
    ferry_status status = ferry_layer_create(comm, &config, &layer);
    check_status(job->c, rank, status, FERRY_E_MISMATCH, "ferry_layer_create");
    if (layer) check_fail(job->c, "rank %d: a refused layer was handed out", rank);
    if (!*ferry_last_error()) check_fail(job->c, "rank %d: the refusal has no sentence", rank);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
}

static void ranks_disagree(const check_case *c) {
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 3, .ring = 128, .save = CHECK_RECOMPUTE};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&plain_problem, &batch), "no memory for the batch");
    for (way.processes = 0; way.processes <= 1 && !check_failed(c); way.processes++) {
        check_job job = {c, &batch, &way, NULL, (void *)(uintptr_t)c->argument};
        check_launch(&job, mismatch_body, 0);
    }
    check_batch_free(&batch);
}

/* ---- A rank that calls with something else than its peers ---- */

typedef struct odd_call {
    const char *name;
    void (*change)(check_shard *shard);
    int backward; /* the change is in the backward */
} odd_call;

static void f16_weights(check_shard *s) { s->forward.params.up.dtype = FERRY_F16; }
static void f32_ids(check_shard *s) { s->forward.ids_dtype = FERRY_F32; }
static void no_x(check_shard *s) { s->forward.x = NULL; }
static void other_parts(check_shard *s) { s->backward.parts = FERRY_BACKWARD_DATA; }
static void f16_gradients(check_shard *s) { s->backward.grads.down.to.dtype = FERRY_F16; }

static const odd_call odd_calls[] = {
    {"F16 weights", f16_weights, 0},
    {"ids in F32", f32_ids, 0},
    {"no x", no_x, 0},
    {"other parts of the backward", other_parts, 1},
    {"F16 gradients", f16_gradients, 1},
};

enum { ODD_TIMEOUT_S = 2 };

/* No rank may report success, and none may wait much longer than the deadline. */
static void odd_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    const odd_call *odd = job->user;
    const check_case *c = job->c;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    if (!check_rank_open(&r, c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(c, job->batch, job->way, rank, r.comm, &shard) && check_rank_context(&r, &context)) {
        shard.forward.context = shard.backward.context = context;
        double begin = check_now();
        ferry_status status = FERRY_OK;
        if (odd->backward) status = ferry_forward(r.layer, &shard.forward); /* may end by what peers do next */
        if (rank == 1) odd->change(&shard);
        if (!status) {
            status = odd->backward ? ferry_backward(r.layer, &shard.backward) : ferry_forward(r.layer, &shard.forward);
        }
        double seconds = check_now() - begin;
        if (status == FERRY_OK)
            check_fail(c, "rank %d: the call of rank 1 is odd, and this rank's succeeded", rank);
        else if (!*ferry_last_error())
            check_fail(c, "rank %d: %s has no sentence", rank, ferry_status_name(status));
        if (seconds > (ODD_TIMEOUT_S + 2) * check_patience()) {
            check_fail(c, "rank %d: the error took %.1f s, the deadline is %d s", rank, seconds, ODD_TIMEOUT_S);
        }
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

static void odd_rank(const check_case *c) {
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 3};
    way.enter_timeout_s = way.progress_timeout_s = ODD_TIMEOUT_S;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&plain_problem, &batch), "no memory for the batch");
    for (way.processes = 0; way.processes <= 1 && !check_failed(c); way.processes++) {
        check_job job = {c, &batch, &way, NULL, (void *)(uintptr_t)c->argument};
        check_launch(&job, odd_body, 0);
    }
    check_batch_free(&batch);
}

/* ---- Arguments ---- */

typedef struct bad_argument {
    const char *name;
    ferry_status status;
    void (*change)(ferry_forward_args *forward, ferry_backward_args *backward); /* of one of the two */
    int backward;
} bad_argument;

#define BAD(name, statement)                                                                                           \
    static void bad_##name(ferry_forward_args *f, ferry_backward_args *b) {                                            \
        (void)f, (void)b;                                                                                              \
        statement;                                                                                                     \
    }
BAD(forward_size, f->size = 8)
BAD(num_tokens, f->num_tokens = NULL)
BAD(x, f->x = NULL)
BAD(x_stride, f->x_stride = 71)
BAD(ids, f->ids = NULL)
BAD(ids_f32, f->ids_dtype = FERRY_F32)
BAD(weights, f->weights = NULL)
BAD(gate_f16, f->params.gate.dtype = FERRY_F16)
BAD(up_f64, f->params.up.dtype = FERRY_F64)
BAD(down_f32, f->params.down.dtype = FERRY_F32)
BAD(down_stride, f->params.down.row_stride = 39)
BAD(gate_absent, f->params.gate.base = NULL)
BAD(shared_absent, f->params.shared_down.base = NULL)
BAD(out, f->out = NULL)
BAD(out_stride, f->out_stride = 1)
BAD(backward_size, b->size = 0)
BAD(context, b->context = NULL)
BAD(parts, b->parts = 0)
BAD(parts_high, b->parts = 4)
BAD(dout, b->dout = NULL)
BAD(dout_stride, b->dout_stride = 71)
BAD(dx, b->dx = NULL)
BAD(grad_f16, b->grads.up.to.dtype = FERRY_F16)
BAD(grad_f64, b->grads.gate.to.dtype = FERRY_F64)
BAD(beta, b->grads.gate.beta = 0.5f)
BAD(grad_stride, b->grads.gate.to.row_stride = 71)

static const bad_argument bad_arguments[] = {
    {"size of the forward's arguments", FERRY_E_INVALID, bad_forward_size, 0},
    {"num_tokens is NULL", FERRY_E_INVALID, bad_num_tokens, 0},
    {"x is NULL", FERRY_E_INVALID, bad_x, 0},
    {"case 27: x_stride below H", FERRY_E_INVALID, bad_x_stride, 0},
    {"ids are NULL", FERRY_E_INVALID, bad_ids, 0},
    {"ids in F32", FERRY_E_UNSUPPORTED, bad_ids_f32, 0},
    {"weights are NULL", FERRY_E_INVALID, bad_weights, 0},
    {"case 26: gate in F16", FERRY_E_UNSUPPORTED, bad_gate_f16, 0},
    {"case 26: up in F64", FERRY_E_UNSUPPORTED, bad_up_f64, 0},
    {"down in F32", FERRY_E_UNSUPPORTED, bad_down_f32, 0},
    {"row stride of down below I", FERRY_E_INVALID, bad_down_stride, 0},
    {"gate is absent", FERRY_E_INVALID, bad_gate_absent, 0},
    {"shared_down is absent", FERRY_E_INVALID, bad_shared_absent, 0},
    {"out is NULL", FERRY_E_INVALID, bad_out, 0},
    {"out_stride below H", FERRY_E_INVALID, bad_out_stride, 0},
    {"size of the backward's arguments", FERRY_E_INVALID, bad_backward_size, 1},
    {"context is NULL", FERRY_E_INVALID, bad_context, 1},
    {"parts is 0", FERRY_E_INVALID, bad_parts, 1},
    {"parts is 4", FERRY_E_INVALID, bad_parts_high, 1},
    {"dout is NULL", FERRY_E_INVALID, bad_dout, 1},
    {"dout_stride below H", FERRY_E_INVALID, bad_dout_stride, 1},
    {"dx is NULL", FERRY_E_INVALID, bad_dx, 1},
    {"gradient of up in F16", FERRY_E_UNSUPPORTED, bad_grad_f16, 1},
    {"gradient of gate in F64", FERRY_E_UNSUPPORTED, bad_grad_f64, 1},
    {"beta 0.5", FERRY_E_INVALID, bad_beta, 1},
    {"row stride of a gradient below H", FERRY_E_INVALID, bad_grad_stride, 1},
};

/* One rank: what is refused before anything starts leaves the layer as it was, so the batch comes out right. */
static void arguments_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    const bad_argument *bad = job->user;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    const check_case *c = job->c;
    if (!check_rank_open(&r, c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(c, job->batch, job->way, rank, r.comm, &shard) && check_rank_context(&r, &context)) {
        ferry_forward_args forward = shard.forward;
        ferry_backward_args backward = shard.backward;
        backward.context = context;
        check_status(c, rank, ferry_backward(r.layer, &backward), FERRY_E_STATE, "a backward of an empty context");
        if (!bad->backward) {
            bad->change(&forward, NULL);
            check_status(c, rank, ferry_forward(r.layer, &forward), bad->status, bad->name);
        }
        int good = check_rank_forward(&r, &shard, context, NULL);
        if (good && bad->backward) {
            bad->change(NULL, &backward);
            check_status(c, rank, ferry_backward(r.layer, &backward), bad->status, bad->name);
        }
        if (good && check_rank_backward(&r, &shard, context, NULL)) check_shard_gather(&shard, job->result);
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

static void refuse_argument(const check_case *c) {
    run_body(c, &plain_problem, (check_way){.ranks = 1}, arguments_body, (void *)(uintptr_t)c->argument);
}

/* ---- Nothing to do ---- */

/* Outputs that are not wanted are skipped; what a forward has left may be given up; NULL may be destroyed and cleared.
 */
static void skip_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    ferry_layer_destroy(NULL);
    ferry_context_clear(NULL);
    ferry_context_destroy(NULL);
    ferry_comm_destroy(NULL);
    ferry_thread_group_destroy(NULL);
    ferry_env_bootstrap_destroy(NULL);
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard) && check_rank_context(&r, &context) &&
        check_rank_forward(&r, &shard, context, NULL)) {
        shard.backward.dweights = NULL;
        memset(&shard.backward.grads, 0, sizeof shard.backward.grads);
        if (check_rank_backward(&r, &shard, context, NULL)) {
            check_shard_gather(&shard, job->result);
            ferry_backward_args backward = shard.backward;
            backward.context = context;
            ferry_context_clear(context);
            check_status(job->c, rank, ferry_backward(r.layer, &backward), FERRY_E_STATE,
                         "a backward of a context that was cleared");
        }
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

static void skip_outputs(const check_case *c) {
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 2};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&plain_problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_result *full = result ? check_run(c, &batch, &way) : NULL;
    check_job job = {c, &batch, &way, result, NULL};
    if (full) check_launch(&job, skip_body, 0);
    for (int id = 0; id <= CHECK_DX && full && !check_failed(c); id++) {
        const check_tensor *a = &result->tensor[id], *b = &full->tensor[id];
        if (memcmp(a->data, b->data, (size_t)a->count * check_dtype_bytes(a->dtype)) != 0) {
            check_fail(c, "%s changes when gradients are not wanted", check_tensor_name((check_tensor_id)id));
        }
    }
    check_result_free(full);
    check_result_free(result);
    check_batch_free(&batch);
}

void check_add_errors(check_list *list) {
    check_add(list, "life", 60, too_many_tokens, NULL, "case 18: N above max_tokens, threads");
    check_add(list, "life", 60, too_many_tokens, list, "case 18: N above max_tokens, processes");
    check_add(list, "life", 60, skip_outputs, NULL, "gradients that are not wanted are skipped");
    for (size_t i = 0; i < sizeof mismatches / sizeof *mismatches; i++) {
        check_add(list, "life", 60, ranks_disagree, &mismatches[i], "case 40: ranks disagree about %s",
                  mismatches[i].name);
    }
    for (size_t i = 0; i < sizeof odd_calls / sizeof *odd_calls; i++) {
        check_add(list, "life", 60, odd_rank, &odd_calls[i], "case 40: one rank calls with %s", odd_calls[i].name);
    }
    for (size_t i = 0; i < sizeof bad_arguments / sizeof *bad_arguments; i++) {
        check_add(list, "life", 60, refuse_argument, &bad_arguments[i], "refused: %s", bad_arguments[i].name);
    }
}
