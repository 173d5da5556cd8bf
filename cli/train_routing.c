/* SPDX-License-Identifier: Apache-2.0 */
/* Recording the routing of a training: every rank puts ids and weights of its own tokens into shared memory. */
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/train.h"

static size_t count_of(const routing *r) { return (size_t)(r->tokens * r->slots); }

int train_routing_begin(train_job *job) {
    const lm_config *c = &job->config;
    routing *r = &job->recorded;
    if (!job->options.record_routing) return CLI_OK;
    *r = (routing){.tokens = c->sequences * c->length, .slots = c->slots};
    r->ids = cli_shared_alloc(count_of(r) * sizeof *r->ids);
    r->weights = cli_shared_alloc(count_of(r) * sizeof *r->weights);
    return r->ids && r->weights ? CLI_OK : cli_fail("no memory to record the routing");
}

void train_routing_take(const train_job *job, const lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    const lm_tape *tape = &model->tapes[model->config.layers - 1];
    const routing *r = &job->recorded;
    if (!job->options.record_routing) return;
    int64_t first = model->first_shard * model->shard_sequences * model->config.length * r->slots;
    size_t count = (size_t)(model->local_sequences * model->config.length * r->slots);
    /* A device that fails here fails the evaluation that follows too. */
    model->ops->get(r->ids + first, tape->ids, count * sizeof *r->ids);
    model->ops->get(r->weights + first, tape->weights, count * sizeof *r->weights);
}

int train_routing_write(const train_job *job) {
    const char *path = job->options.record_routing;
    int code = path ? routing_write(&job->recorded, path) : CLI_OK;
    if (path && !code) train_print_wrote(job, path);
    return code;
}

void train_routing_end(train_job *job) {
    cli_shared_free(job->recorded.ids, count_of(&job->recorded) * sizeof *job->recorded.ids);
    cli_shared_free(job->recorded.weights, count_of(&job->recorded) * sizeof *job->recorded.weights);
}
