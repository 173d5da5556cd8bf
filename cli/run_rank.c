/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry run`: its slice of the tokens, its experts, a forward and, with dout, a backward. */
#include "cli/message.h"
#include "cli/run.h"

#include <stdio.h>
#include <time.h>

typedef struct rank_state {
    const run_job *job;
    const run_problem *problem;
    run_result *result;
    int rank;
    int32_t tokens;
    int64_t first; /* token */
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_weights params;
} rank_state;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t dtype_bytes(ferry_dtype dtype) { return dtype == FERRY_BF16 ? 2 : dtype == FERRY_I64 ? 8 : 4; }

/* Row `index` of an array whose rows hold `columns` elements. */
static void *row_of(const void *array, int64_t index, int64_t columns, ferry_dtype dtype) {
    return array ? (char *)array + (size_t)index * (size_t)columns * dtype_bytes(dtype) : NULL;
}

/* The part of a tensor over all experts [E, rows, columns] that this rank's contiguous block of experts has. */
static ferry_matrices expert_block(const rank_state *s, const void *all, int64_t rows, int64_t columns,
                                   ferry_dtype dtype) {
    int64_t first = ferry_layer_local_experts(s->layer, s->rank) > 0 ? ferry_layer_expert_id(s->layer, s->rank, 0) : 0;
    return (ferry_matrices){.base = row_of(all, first, rows * columns, dtype),
                            .expert_stride = rows * columns,
                            .row_stride = columns,
                            .dtype = dtype};
}

static ferry_matrices one_matrix(const void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){
        .base = (void *)base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

static ferry_status create(rank_state *s, const ferry_bootstrap *bootstrap, const char **doing) {
    const run_job *job = s->job;
    const run_problem *p = s->problem;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.backend = (ferry_backend)job->options->backend;
    config.bootstrap = *bootstrap;
    config.comm_workers = job->comm_workers;
    config.compute_workers = job->compute_workers;
    config.isa = (ferry_isa)job->options->isa;
    config.enter_timeout_s = config.progress_timeout_s = job->options->timeout_s;

    *doing = "creating the communicator";
    ferry_status status = ferry_comm_create(&config, &s->comm);
    if (status) return status;
    *doing = "creating the layer";
    status = ferry_layer_create(s->comm, &job->config, &s->layer);
    if (status) return status;
    s->result->plan.size = sizeof s->result->plan;
    status = ferry_layer_get_plan(s->layer, &s->result->plan);
    if (status || !p->dout) return status;
    *doing = "creating the context";
    return ferry_context_create(s->layer, NULL, &s->context);
}

static void set_params(rank_state *s) {
    const run_problem *p = s->problem;
    s->params.gate = expert_block(s, p->gate, p->intermediate, p->hidden, FERRY_BF16);
    s->params.up = expert_block(s, p->up, p->intermediate, p->hidden, FERRY_BF16);
    s->params.down = expert_block(s, p->down, p->hidden, p->intermediate, FERRY_BF16);
    if (p->shared == 0) return;
    s->params.shared_gate = one_matrix(p->shared_gate, p->shared, p->hidden, FERRY_BF16);
    s->params.shared_up = one_matrix(p->shared_up, p->shared, p->hidden, FERRY_BF16);
    s->params.shared_down = one_matrix(p->shared_down, p->hidden, p->shared, FERRY_BF16);
}

/* Bad ids are no failure of the rank: the outputs are complete, and the report goes to the caller. */
static ferry_status forward(rank_state *s) {
    const run_problem *p = s->problem;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &s->tokens;
    args.x = row_of(p->x, s->first, p->hidden, FERRY_BF16);
    args.ids = row_of(p->ids, s->first, p->slots, p->ids_dtype);
    args.ids_dtype = p->ids_dtype;
    args.weights = row_of(p->weights, s->first, p->slots, FERRY_F32);
    args.params = s->params;
    args.out = row_of(s->job->outputs.out, s->first, p->hidden, FERRY_BF16);
    args.context = s->context;
    double start = now_s();
    ferry_status status = ferry_forward(s->layer, &args);
    s->result->forward_s = now_s() - start;
    if (status == FERRY_E_BAD_ID) {
        s->result->report.size = sizeof s->result->report;
        status = ferry_layer_poll(s->layer, &s->result->report);
        if (status == FERRY_E_BAD_ID) status = FERRY_OK;
    }
    if (status) return status;
    s->result->forward.size = sizeof s->result->forward;
    return ferry_layer_stats(s->layer, &s->result->forward);
}

/* This rank's part of the shared expert's gradients, which are sums over its own tokens. */
static ferry_matrices shared_part(const rank_state *s, float *all, int64_t rows, int64_t columns) {
    return one_matrix(all + s->rank * rows * columns, rows, columns, FERRY_F32);
}

static ferry_status backward(rank_state *s) {
    const run_problem *p = s->problem;
    const run_outputs *o = &s->job->outputs;
    ferry_dtype grad = s->job->options->grad_bf16 ? FERRY_BF16 : FERRY_F32;
    ferry_backward_args args;
    ferry_backward_args_init(&args);
    args.context = s->context;
    args.parts = FERRY_BACKWARD_ALL;
    args.dout = row_of(p->dout, s->first, p->hidden, FERRY_BF16);
    args.params = s->params;
    args.dx = row_of(o->dx, s->first, p->hidden, FERRY_BF16);
    args.dweights = row_of(o->dweights, s->first, p->slots, FERRY_F32);
    args.grads.gate.to = expert_block(s, o->dgate, p->intermediate, p->hidden, grad);
    args.grads.up.to = expert_block(s, o->dup, p->intermediate, p->hidden, grad);
    args.grads.down.to = expert_block(s, o->ddown, p->hidden, p->intermediate, grad);
    if (p->shared > 0) {
        args.grads.shared_gate.to = shared_part(s, o->dshared_gate, p->shared, p->hidden);
        args.grads.shared_up.to = shared_part(s, o->dshared_up, p->shared, p->hidden);
        args.grads.shared_down.to = shared_part(s, o->dshared_down, p->hidden, p->shared);
    }
    double start = now_s();
    ferry_status status = ferry_backward(s->layer, &args);
    s->result->backward_s = now_s() - start;
    if (status) return status;
    s->result->backward.size = sizeof s->result->backward;
    return ferry_layer_stats(s->layer, &s->result->backward);
}

int run_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const run_job *job = user;
    const int64_t *first = job->problem->first_token;
    rank_state s = {.job = job,
                    .problem = job->problem,
                    .result = &job->results[rank],
                    .rank = rank,
                    .first = first[rank],
                    .tokens = (int32_t)(first[rank + 1] - first[rank])};
    const char *doing;
    ferry_status status = create(&s, bootstrap, &doing);
    if (!status) {
        set_params(&s);
        doing = "forward";
        status = forward(&s);
    }
    if (!status && s.context) {
        doing = "backward";
        status = backward(&s);
    }
    int code = CLI_OK;
    if (status) {
        char where[64];
        snprintf(where, sizeof where, "rank %d: %s", rank, doing);
        code = cli_fail_status(status, where);
    }
    ferry_context_destroy(s.context);
    ferry_layer_destroy(s.layer);
    ferry_comm_destroy(s.comm);
    return code;
}
