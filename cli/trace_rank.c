/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry trace`: a layer with the observer, a call that warms up, and the call that is kept. */
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/trace.h"

#include <stdio.h>
#include <stdlib.h>

/* A rank's tensors: views of the problem's, and outputs of its own that nobody reads. */
typedef struct rank_state {
    trace_job *job;
    const run_problem *problem;
    int rank;
    int32_t tokens;
    int64_t first, first_expert, local_experts;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_weights params;
    uint16_t *out, *dx;
    float *dweights, *grads; /* grads: gate, up, down, then the shared expert's three */
} rank_state;

static ferry_matrices matrices(const void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){
        .base = (void *)base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

static void set_params(rank_state *s) {
    const run_problem *p = s->problem;
    int64_t h = p->hidden, i = p->intermediate, skip = s->first_expert * i * h;
    s->params.gate = matrices((const uint16_t *)p->gate + skip, i, h, FERRY_BF16);
    s->params.up = matrices((const uint16_t *)p->up + skip, i, h, FERRY_BF16);
    s->params.down = matrices((const uint16_t *)p->down + skip, h, i, FERRY_BF16);
    if (p->shared == 0) return;
    s->params.shared_gate = matrices(p->shared_gate, p->shared, h, FERRY_BF16);
    s->params.shared_up = matrices(p->shared_up, p->shared, h, FERRY_BF16);
    s->params.shared_down = matrices(p->shared_down, h, p->shared, FERRY_BF16);
}

static ferry_status create(rank_state *s, const ferry_bootstrap *bootstrap) {
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.bootstrap = *bootstrap;
    config.comm_workers = s->job->log.comm_workers;
    config.compute_workers = s->job->log.compute_workers;
    config.observer = trace_observer(&s->job->log);
    ferry_status status = ferry_comm_create(&config, &s->comm);
    if (!status) status = ferry_layer_create(s->comm, &s->job->config, &s->layer);
    if (!status && s->job->options->backward) status = ferry_context_create(s->layer, NULL, &s->context);
    if (status) return status;
    s->local_experts = ferry_layer_local_experts(s->layer, s->rank);
    s->first_expert = s->local_experts > 0 ? ferry_layer_expert_id(s->layer, s->rank, 0) : 0;
    set_params(s);
    return FERRY_OK;
}

/* 0, or -1 when there is no memory. */
static int make_outputs(rank_state *s) {
    const run_problem *p = s->problem;
    size_t row_elements = (size_t)s->tokens * (size_t)p->hidden;
    size_t grad_elements = 3 * (size_t)p->hidden * (size_t)(s->local_experts * p->intermediate + p->shared);
    s->out = malloc(row_elements * sizeof *s->out + 1);
    if (!s->context) return s->out ? 0 : -1;
    s->dx = malloc(row_elements * sizeof *s->dx + 1);
    s->dweights = malloc((size_t)s->tokens * (size_t)p->slots * sizeof *s->dweights + 1);
    s->grads = malloc(grad_elements * sizeof *s->grads + 1);
    return s->out && s->dx && s->dweights && s->grads ? 0 : -1;
}

/* Bad ids are no failure here: they count as -1, and the timeline is that of the call as it ran. */
static ferry_status forward(rank_state *s) {
    const run_problem *p = s->problem;
    size_t id_bytes = p->ids_dtype == FERRY_I64 ? 8 : 4;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &s->tokens;
    args.x = (const uint16_t *)p->x + s->first * p->hidden;
    args.ids = (const char *)p->ids + (size_t)(s->first * p->slots) * id_bytes;
    args.ids_dtype = p->ids_dtype;
    args.weights = (const float *)p->weights + s->first * p->slots;
    args.params = s->params;
    args.out = s->out;
    args.context = s->context;
    ferry_status status = ferry_forward(s->layer, &args);
    return status == FERRY_E_BAD_ID ? FERRY_OK : status;
}

static ferry_status backward(rank_state *s) {
    const run_problem *p = s->problem;
    int64_t h = p->hidden, i = p->intermediate, matrix = s->local_experts * i * h;
    ferry_backward_args args;
    ferry_backward_args_init(&args);
    args.context = s->context;
    args.parts = FERRY_BACKWARD_ALL;
    args.dout = (const uint16_t *)p->dout + s->first * h;
    args.params = s->params;
    args.dx = s->dx;
    args.dweights = s->dweights;
    args.grads.gate.to = matrices(s->grads, i, h, FERRY_F32);
    args.grads.up.to = matrices(s->grads + matrix, i, h, FERRY_F32);
    args.grads.down.to = matrices(s->grads + 2 * matrix, h, i, FERRY_F32);
    if (p->shared > 0) {
        float *shared = s->grads + 3 * matrix;
        args.grads.shared_gate.to = matrices(shared, p->shared, h, FERRY_F32);
        args.grads.shared_up.to = matrices(shared + p->shared * h, p->shared, h, FERRY_F32);
        args.grads.shared_down.to = matrices(shared + 2 * p->shared * h, h, p->shared, FERRY_F32);
    }
    return ferry_backward(s->layer, &args);
}

/* The barrier lets the ranks begin together. */
static ferry_status calls(rank_state *s, const char **doing) {
    *doing = "barrier";
    ferry_status status = ferry_barrier(s->comm);
    if (status) return status;
    *doing = "forward";
    status = forward(s);
    if (status || !s->context) return status;
    *doing = "backward";
    return backward(s);
}

int trace_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    trace_job *job = user;
    const int64_t *first = job->problem->first_token;
    rank_state s = {.job = job,
                    .problem = job->problem,
                    .rank = rank,
                    .first = first[rank],
                    .tokens = (int32_t)(first[rank + 1] - first[rank])};
    const char *doing = "creating the layer";
    int code = CLI_OK;
    ferry_status status = create(&s, bootstrap);
    int no_memory = !status && make_outputs(&s) != 0;
    if (no_memory) code = cli_fail("rank %d: no memory for its outputs", rank);
    if (!status && !no_memory) status = calls(&s, &doing);
    if (!status && !no_memory) {
        trace_log_reset(&job->log, rank);
        status = calls(&s, &doing);
    }
    if (status) {
        char where[64];
        snprintf(where, sizeof where, "rank %d: %s", rank, doing);
        code = cli_fail_status(status, where);
    }
    free(s.out);
    free(s.dx);
    free(s.dweights);
    free(s.grads);
    ferry_context_destroy(s.context);
    ferry_layer_destroy(s.layer);
    ferry_comm_destroy(s.comm);
    return code;
}
