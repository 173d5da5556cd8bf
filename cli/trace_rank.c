/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry trace`: a layer with the observer, a call that warms up, and the call that is kept. */
#include "cli/device.h"
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/rank_end.h"
#include "cli/trace.h"

/* A rank's tensors: the problem's where its device has them, and outputs of its own that nobody reads. */
typedef struct rank_state {
    trace_job *job;
    const run_problem *problem;
    int rank;
    int32_t tokens;
    int64_t first, first_expert, local_experts;
    cli_device device;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_weights params;
    const void *x, *ids, *weights, *dout;
    uint16_t *out, *dx;
    float *dweights, *grads; /* grads: gate, up, down, then the shared expert's three */
} rank_state;

static ferry_matrices matrices(const void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){
        .base = (void *)base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

/* `count` elements from element `skip` on, on the device. */
static const void *input(rank_state *s, const void *host, int64_t skip, int64_t count, size_t element) {
    return host ? cli_device_in(&s->device, (const char *)host + (size_t)skip * element, (size_t)count * element)
                : NULL;
}

static void set_inputs(rank_state *s) {
    const run_problem *p = s->problem;
    int64_t h = p->hidden, matrix = p->intermediate * h, skip = s->first_expert * matrix,
            count = s->local_experts * matrix, shared = p->shared * h;
    size_t id_bytes = p->ids_dtype == FERRY_I64 ? 8 : 4;
    s->x = input(s, p->x, s->first * h, s->tokens * h, 2);
    s->ids = input(s, p->ids, s->first * p->slots, s->tokens * p->slots, id_bytes);
    s->weights = input(s, p->weights, s->first * p->slots, s->tokens * p->slots, sizeof(float));
    if (s->context) s->dout = input(s, p->dout, s->first * h, s->tokens * h, 2);
    s->params.gate = matrices(input(s, p->gate, skip, count, 2), p->intermediate, h, FERRY_BF16);
    s->params.up = matrices(input(s, p->up, skip, count, 2), p->intermediate, h, FERRY_BF16);
    s->params.down = matrices(input(s, p->down, skip, count, 2), h, p->intermediate, FERRY_BF16);
    if (p->shared == 0) return;
    s->params.shared_gate = matrices(input(s, p->shared_gate, 0, shared, 2), p->shared, h, FERRY_BF16);
    s->params.shared_up = matrices(input(s, p->shared_up, 0, shared, 2), p->shared, h, FERRY_BF16);
    s->params.shared_down = matrices(input(s, p->shared_down, 0, shared, 2), h, p->shared, FERRY_BF16);
}

static ferry_status create(rank_state *s, const ferry_bootstrap *bootstrap) {
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.backend = (ferry_backend)s->job->options->backend;
    config.bootstrap = *bootstrap;
    config.device = s->device.index;
    config.comm_workers = s->job->comm_workers;
    config.compute_workers = s->job->compute_workers;
    config.observer = trace_observer(&s->job->log);
    ferry_status status = ferry_comm_create(&config, &s->comm);
    if (!status) status = ferry_layer_create(s->comm, &s->job->config, &s->layer);
    if (!status && s->job->options->backward) status = ferry_context_create(s->layer, NULL, &s->context);
    if (status) return status;
    s->local_experts = ferry_layer_local_experts(s->layer, s->rank);
    s->first_expert = s->local_experts > 0 ? ferry_layer_expert_id(s->layer, s->rank, 0) : 0;
    return FERRY_OK;
}

static void make_outputs(rank_state *s) {
    const run_problem *p = s->problem;
    size_t row_elements = (size_t)s->tokens * (size_t)p->hidden;
    size_t grad_elements = 3 * (size_t)p->hidden * (size_t)(s->local_experts * p->intermediate + p->shared);
    s->out = cli_device_alloc(&s->device, row_elements * sizeof *s->out);
    if (!s->context) return;
    s->dx = cli_device_alloc(&s->device, row_elements * sizeof *s->dx);
    s->dweights = cli_device_alloc(&s->device, (size_t)s->tokens * (size_t)p->slots * sizeof *s->dweights);
    s->grads = cli_device_alloc(&s->device, grad_elements * sizeof *s->grads);
}

/* Bad ids are no failure here: they count as -1, and the timeline is that of the call as it ran. */
static ferry_status forward(rank_state *s) {
    const run_problem *p = s->problem;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &s->tokens;
    args.x = s->x;
    args.ids = s->ids;
    args.ids_dtype = p->ids_dtype;
    args.weights = s->weights;
    args.params = s->params;
    args.out = s->out;
    args.context = s->context;
    args.stream = s->device.stream;
    ferry_status status = ferry_forward(s->layer, &args);
    if (status && status != FERRY_E_BAD_ID) return status;
    return ferry_comm_error(s->comm);
}

static ferry_status backward(rank_state *s) {
    const run_problem *p = s->problem;
    int64_t h = p->hidden, i = p->intermediate, matrix = s->local_experts * i * h;
    ferry_backward_args args;
    ferry_backward_args_init(&args);
    args.context = s->context;
    args.parts = FERRY_BACKWARD_ALL;
    args.dout = s->dout;
    args.stream = s->device.stream;
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
    ferry_status status = ferry_backward(s->layer, &args);
    return status && status != FERRY_E_BAD_ID ? status : ferry_comm_error(s->comm);
}

/* The barrier lets the ranks begin together. */
static ferry_status calls(rank_state *s, const char **doing) {
    *doing = "barrier";
    ferry_status status = ferry_barrier(s->comm);
    if (status) return status;
    *doing = "forward";
    status = forward(s);
    if (status || !s->context) return status;
    /* On GPUs ranks take their time to tell the forward's events. */
    if (s->job->log.sms) status = ferry_barrier(s->comm);
    if (status) return status;
    *doing = "backward";
    return backward(s);
}

/* FERRY_OK, or what failed while `*doing` was done; s->device.why has the sentence where it was the device. */
static ferry_status work(rank_state *s, const ferry_bootstrap *bootstrap, const char **doing) {
    *doing = "creating the layer";
    ferry_status status = create(s, bootstrap);
    if (status) return status;
    *doing = "placing the tensors";
    set_inputs(s);
    make_outputs(s);
    if (s->device.why[0]) return FERRY_E_MEMORY;
    status = calls(s, doing);
    if (status) return status;
    trace_log_reset(&s->job->log, s->rank);
    return calls(s, doing);
}

int trace_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    trace_job *job = user;
    const int64_t *first = job->problem->first_token;
    rank_state s = {.job = job,
                    .problem = job->problem,
                    .rank = rank,
                    .first = first[rank],
                    .tokens = (int32_t)(first[rank + 1] - first[rank])};
    if (!cli_device_open(&s.device, (ferry_backend)job->options->backend, rank))
        return cli_fail("rank %d: %s", rank, s.device.why);
    const char *doing = "";
    ferry_status status = work(&s, bootstrap, &doing);
    return cli_rank_end(rank, status, doing, s.context, s.layer, s.comm, &s.device);
}
