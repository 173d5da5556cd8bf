/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry run`: its slice of the tokens, its experts, a forward and, with dout, a backward. */
#include "cli/clock.h"
#include "cli/device.h"
#include "cli/message.h"
#include "cli/rank_end.h"
#include "cli/run.h"

typedef struct rank_state {
    const run_job *job;
    const run_problem *problem;
    run_result *result;
    int rank;
    int32_t tokens;
    int64_t first; /* token */
    cli_device device;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_forward_args forward;
    ferry_backward_args backward;
} rank_state;

static size_t dtype_bytes(ferry_dtype dtype) { return dtype == FERRY_BF16 ? 2 : dtype == FERRY_I64 ? 8 : 4; }

/* Row `index` of an array whose rows hold `columns` elements. */
static void *row_of(const void *array, int64_t index, int64_t columns, ferry_dtype dtype) {
    return array ? (char *)array + (size_t)index * (size_t)columns * dtype_bytes(dtype) : NULL;
}

/* An input's or a result's memory where the layer wants it. */
static void *input(rank_state *s, const void *host, int64_t count, ferry_dtype dtype) {
    return cli_device_in(&s->device, host, (size_t)count * dtype_bytes(dtype));
}

static void *output(rank_state *s, void *host, int64_t count, ferry_dtype dtype) {
    return cli_device_out(&s->device, host, (size_t)count * dtype_bytes(dtype));
}

/* This rank's rows of a tensor over all tokens [N, columns]. */
static void *input_rows(rank_state *s, const void *all, int64_t columns, ferry_dtype dtype) {
    return input(s, row_of(all, s->first, columns, dtype), s->tokens * columns, dtype);
}

static void *output_rows(rank_state *s, void *all, int64_t columns, ferry_dtype dtype) {
    return output(s, row_of(all, s->first, columns, dtype), s->tokens * columns, dtype);
}

static ferry_matrices matrices(void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

static int64_t local_experts(const rank_state *s) { return ferry_layer_local_experts(s->layer, s->rank); }

/* Where a tensor over all experts [E, rows, columns] has this rank's contiguous block of experts. */
static void *block_of(const rank_state *s, const void *all, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return row_of(all, local_experts(s) > 0 ? ferry_layer_expert_id(s->layer, s->rank, 0) : 0, rows * columns, dtype);
}

static ferry_matrices expert_weights(rank_state *s, const void *all, int64_t rows, int64_t columns) {
    void *mine = block_of(s, all, rows, columns, FERRY_BF16);
    return matrices(input(s, mine, local_experts(s) * rows * columns, FERRY_BF16), rows, columns, FERRY_BF16);
}

static ferry_matrices expert_gradients(rank_state *s, void *all, int64_t rows, int64_t columns) {
    ferry_dtype dtype = s->job->options->grad_bf16 ? FERRY_BF16 : FERRY_F32;
    void *mine = block_of(s, all, rows, columns, dtype);
    return matrices(output(s, mine, local_experts(s) * rows * columns, dtype), rows, columns, dtype);
}

static ferry_matrices shared_weights(rank_state *s, const void *all, int64_t rows, int64_t columns) {
    return matrices(input(s, all, rows * columns, FERRY_BF16), rows, columns, FERRY_BF16);
}

/* This rank's part of the shared expert's gradients, which are sums over its own tokens. */
static ferry_matrices shared_gradients(rank_state *s, float *all, int64_t rows, int64_t columns) {
    float *mine = all + s->rank * rows * columns;
    return matrices(output(s, mine, rows * columns, FERRY_F32), rows, columns, FERRY_F32);
}

static ferry_status create(rank_state *s, const ferry_bootstrap *bootstrap, const char **doing) {
    const run_job *job = s->job;
    const run_problem *p = s->problem;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.backend = (ferry_backend)job->options->backend;
    config.bootstrap = *bootstrap;
    config.device = s->device.index;
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

/* Everything is in its place before the first call: while a peer's call waits for this rank on a GPU that they share,
 * nothing that could wait for that GPU may come in between. */
static void set_forward(rank_state *s) {
    const run_problem *p = s->problem;
    ferry_forward_args *f = &s->forward;
    ferry_forward_args_init(f);
    f->num_tokens = &s->tokens;
    f->x = input_rows(s, p->x, p->hidden, FERRY_BF16);
    f->ids = input_rows(s, p->ids, p->slots, p->ids_dtype);
    f->ids_dtype = p->ids_dtype;
    f->weights = input_rows(s, p->weights, p->slots, FERRY_F32);
    f->out = output_rows(s, s->job->outputs.out, p->hidden, FERRY_BF16);
    f->context = s->context;
    f->stream = s->device.stream;
    f->params.gate = expert_weights(s, p->gate, p->intermediate, p->hidden);
    f->params.up = expert_weights(s, p->up, p->intermediate, p->hidden);
    f->params.down = expert_weights(s, p->down, p->hidden, p->intermediate);
    if (p->shared == 0) return;
    f->params.shared_gate = shared_weights(s, p->shared_gate, p->shared, p->hidden);
    f->params.shared_up = shared_weights(s, p->shared_up, p->shared, p->hidden);
    f->params.shared_down = shared_weights(s, p->shared_down, p->hidden, p->shared);
}

static void set_backward(rank_state *s) {
    const run_problem *p = s->problem;
    const run_outputs *o = &s->job->outputs;
    ferry_backward_args *b = &s->backward;
    ferry_backward_args_init(b);
    b->context = s->context;
    b->parts = FERRY_BACKWARD_ALL;
    b->stream = s->device.stream;
    b->params = s->forward.params;
    b->dout = input_rows(s, p->dout, p->hidden, FERRY_BF16);
    b->dx = output_rows(s, o->dx, p->hidden, FERRY_BF16);
    b->dweights = output_rows(s, o->dweights, p->slots, FERRY_F32);
    b->grads.gate.to = expert_gradients(s, o->dgate, p->intermediate, p->hidden);
    b->grads.up.to = expert_gradients(s, o->dup, p->intermediate, p->hidden);
    b->grads.down.to = expert_gradients(s, o->ddown, p->hidden, p->intermediate);
    if (p->shared == 0) return;
    b->grads.shared_gate.to = shared_gradients(s, o->dshared_gate, p->shared, p->hidden);
    b->grads.shared_up.to = shared_gradients(s, o->dshared_up, p->shared, p->hidden);
    b->grads.shared_down.to = shared_gradients(s, o->dshared_down, p->hidden, p->shared);
}

/* Until the call's work is done. Bad ids are no failure of the rank: the outputs are complete, and the report, which
 * a GPU gives only at the end, goes to the caller. */
static ferry_status finish(rank_state *s, ferry_status status) {
    ferry_report report = {.size = sizeof report};
    if (status && status != FERRY_E_BAD_ID) return status;
    if (!cli_device_wait(&s->device)) return FERRY_E_CUDA;
    status = ferry_layer_poll(s->layer, &report);
    if (status == FERRY_E_BAD_ID) {
        s->result->report = report;
        status = FERRY_OK;
    }
    return status ? status : ferry_comm_error(s->comm);
}

static ferry_status forward(rank_state *s) {
    ferry_status status = ferry_barrier(s->comm);
    double start = cli_now_s();
    if (!status) status = finish(s, ferry_forward(s->layer, &s->forward));
    s->result->forward_s = cli_now_s() - start;
    if (status) return status;
    s->result->forward.size = sizeof s->result->forward;
    return ferry_layer_stats(s->layer, &s->result->forward);
}

static ferry_status backward(rank_state *s) {
    double start = cli_now_s();
    ferry_status status = finish(s, ferry_backward(s->layer, &s->backward));
    s->result->backward_s = cli_now_s() - start;
    if (status) return status;
    s->result->backward.size = sizeof s->result->backward;
    return ferry_layer_stats(s->layer, &s->result->backward);
}

/* FERRY_OK, or what failed while `*doing` was done; s->device.why has the sentence where it was the device. */
static ferry_status work(rank_state *s, const ferry_bootstrap *bootstrap, const char **doing) {
    ferry_status status = create(s, bootstrap, doing);
    if (status) return status;
    *doing = "placing the tensors";
    set_forward(s);
    if (s->context) set_backward(s);
    if (s->device.why[0]) return FERRY_E_MEMORY;
    *doing = "forward";
    status = forward(s);
    if (!status && s->context) {
        *doing = "backward";
        status = backward(s);
    }
    if (status) return status;
    *doing = "taking the results";
    return cli_device_collect(&s->device) ? FERRY_OK : FERRY_E_CUDA;
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
    if (!cli_device_open(&s.device, (ferry_backend)job->options->backend, rank))
        return cli_fail("rank %d: %s", rank, s.device.why);
    const char *doing = "";
    ferry_status status = work(&s, bootstrap, &doing);
    return cli_rank_end(rank, status, doing, s.context, s.layer, s.comm, &s.device);
}
