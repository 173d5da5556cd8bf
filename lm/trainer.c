/* SPDX-License-Identifier: Apache-2.0 */
/* A training step, an evaluation on held-out text, and the experts' load. */
#include "lm/trainer.h"

#include "lm/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int prepare(lm_trainer *trainer, ferry_comm *comm, const ferry_bootstrap *across, const lm_config *config) {
    size_t pairs = (size_t)(config->layers * config->experts);
    LM_TRY(lm_model_create(comm, across ? across->rank : 0, across ? across->nranks : 1, config, &trainer->model));
    const lm_model *model = trainer->model;
    const lm_ops *ops = model->ops;
    LM_TRY(lm_outer_create(across, ops, config, &trainer->outer));
    trainer->windows = calloc((size_t)model->local_sequences, sizeof *trainer->windows);
    trainer->load = ops->alloc(pairs * sizeof *trainer->load);
    trainer->totals = ops->alloc((1 + pairs) * sizeof *trainer->totals);
    trainer->squares = ops->alloc(sizeof *trainer->squares);
    trainer->pull = ops->alloc(pairs * sizeof *trainer->pull);
    trainer->dense_gradient = ops->alloc((size_t)model->layout.dense * sizeof(float));
    trainer->expert_gradient = ops->alloc((size_t)(model->local_experts * model->layout.per_expert) * sizeof(float));
    if (!trainer->load || !trainer->totals || !trainer->squares || !trainer->pull || !trainer->windows ||
        !trainer->dense_gradient || !trainer->expert_gradient)
        return lm_fail("no memory for training on rank %d", model->rank);
    return lm_exchange_create(trainer);
}

int lm_trainer_create(ferry_comm *comm, const ferry_bootstrap *across, const lm_config *config, const lm_text *text,
                      lm_trainer **trainer) {
    lm_trainer *t = calloc(1, sizeof *t);
    if (!t) return lm_fail("no memory for training");
    t->text = text;
    if (prepare(t, comm, across, config)) {
        lm_trainer_destroy(t);
        return -1;
    }
    *trainer = t;
    return 0;
}

void lm_trainer_destroy(lm_trainer *trainer) {
    if (!trainer) return;
    if (trainer->model) {
        const lm_ops *ops = trainer->model->ops;
        ops->wait(); /* letting go of memory waits for the whole GPU, and must not hold up what a peer waits for */
        lm_exchange_destroy(trainer);
        ops->free(trainer->load);
        ops->free(trainer->totals);
        ops->free(trainer->squares);
        ops->free(trainer->pull);
        ops->free(trainer->dense_gradient);
        ops->free(trainer->expert_gradient);
        lm_outer_destroy(trainer->outer);
        lm_model_destroy(trainer->model);
    }
    free(trainer->windows);
    free(trainer);
}

/* Slots per expert of this rank's shards in the last forward. */
static void count_slots(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    lm_parts shards = lm_parts_of(model, model->local_sequences, lm_exchange_stride(trainer));
    for (int64_t block = 0; block < c->layers; block++)
        model->ops->count(lm_exchange_sums(trainer, 0) + 1 + block * c->experts, shards, model->tapes[block].ids,
                          c->slots, c->experts);
}

static void clear_losses(lm_trainer *trainer) {
    for (int64_t shard = 0; shard < trainer->model->local_shards; shard++)
        trainer->model->ops->zero(lm_exchange_sums(trainer, shard), sizeof(double));
}

static void optimize(lm_trainer *trainer) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    for (int n = 0; n < model->layout.count; n++) {
        const lm_tensor *t = &model->layout.tensors[n];
        int64_t at = t->expert ? lm_expert_offset(t, model->local_experts) : t->offset;
        int64_t count = t->expert ? t->count / model->nranks : t->count;
        float *vectors[LM_KINDS];
        for (int kind = 0; kind < LM_KINDS; kind++)
            vectors[kind] = (t->expert ? lm_experts(model, kind) : model->dense[kind]) + at;
        const float *gradient = (t->expert ? trainer->expert_gradient : trainer->dense_gradient) + at;
        model->ops->adamw(c, trainer->step, vectors[LM_VALUE], vectors[LM_MOMENT1], vectors[LM_MOMENT2], gradient,
                          count, trainer->squares, t->decays);
    }
    lm_model_refresh(model);
}

/* The same on all ranks, so they all end here or none. */
static int check_finite(const lm_trainer *trainer, const char *what, double value) {
    if (isfinite(value)) return 0;
    return lm_fail("after %" PRId64 " steps %s is %g: the training has diverged; go on from an earlier checkpoint",
                   trainer->step, what, value);
}

int lm_trainer_fetch(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    double loss, squares;
    if (trainer->fetched == trainer->step) return 0;
    LM_TRY(model->ops->get(&loss, trainer->totals, sizeof loss));
    LM_TRY(model->ops->get(&squares, trainer->squares, sizeof squares));
    LM_TRY(lm_outer_check(trainer->outer));
    trainer->fetched = trainer->step;
    trainer->loss = loss / (double)(c->sequences * c->length);
    trainer->gradient_norm = sqrt(squares);
    LM_TRY(check_finite(trainer, "the loss", trainer->loss));
    return check_finite(trainer, "the norm of the gradient", trainer->gradient_norm);
}

/* Fetching numbers waits for the device, so on a GPU only every so many steps do it. */
enum { FETCH_STEPS = 16 };

int lm_trainer_step(lm_trainer *trainer) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    int64_t first = model->first_shard * model->shard_sequences, tokens = c->sequences * c->length;
    float *gradients = trainer->gradients.mine;
    for (int64_t s = 0; s < model->local_sequences; s++)
        trainer->windows[s] = lm_text_sample(trainer->text, c->seed, trainer->step, first + s, c->sequences, c->length);
    LM_TRY(lm_forward(model, trainer->windows, model->local_sequences, 1));

    model->ops->zero(gradients, (size_t)(model->local_shards * model->layout.dense) * sizeof(float));
    clear_losses(trainer);
    lm_loss(model, trainer->windows, model->local_sequences, (float)(1.0 / (double)tokens), gradients,
            lm_exchange_sums(trainer, 0), lm_exchange_stride(trainer));
    count_slots(trainer);
    LM_TRY(lm_exchange_totals(trainer));
    model->ops->balance(trainer->pull, trainer->load, trainer->totals + 1, c->layers * c->experts,
                        c->balance * (double)c->experts, (double)tokens, (double)c->slots);

    LM_TRY(lm_backward(model, gradients, trainer->expert_gradient, trainer->pull));
    LM_TRY(lm_exchange_gradients(trainer));
    optimize(trainer);
    trainer->step++;
    return model->ops->whole && trainer->step % FETCH_STEPS ? 0 : lm_trainer_fetch(trainer);
}

int64_t lm_trainer_windows(const lm_trainer *trainer) {
    const lm_config *c = &trainer->model->config;
    return lm_text_windows(trainer->text, c->length) / c->sequences * c->sequences;
}

int lm_trainer_evaluate(lm_trainer *trainer, int64_t windows, double *loss) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    int64_t first = model->first_shard * model->shard_sequences, all = lm_text_windows(trainer->text, c->length);
    LM_TRY(lm_trainer_fetch(trainer));
    clear_losses(trainer);
    for (int64_t begin = 0; begin < windows; begin += c->sequences) {
        for (int64_t s = 0; s < model->local_sequences; s++)
            trainer->windows[s] = lm_text_window(trainer->text, (begin + first + s) * all / windows, c->length);
        LM_TRY(lm_forward(model, trainer->windows, model->local_sequences, 0));
        lm_loss(model, trainer->windows, model->local_sequences, 0, NULL, lm_exchange_sums(trainer, 0),
                lm_exchange_stride(trainer));
        LM_TRY(model->ops->wait());
    }
    LM_TRY(lm_exchange_totals(trainer));
    LM_TRY(model->ops->get(loss, trainer->totals, sizeof *loss));
    LM_TRY(lm_outer_check(trainer->outer));
    *loss /= (double)(windows * c->length);
    LM_TRY(lm_meet(model, "waiting for all ranks to read the held-out loss"));
    return check_finite(trainer, "the held-out loss", *loss);
}

int lm_trainer_take_load(lm_trainer *trainer, double *smallest, double *largest) {
    const lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    size_t bytes = (size_t)(c->layers * c->experts) * sizeof(double);
    double *all = malloc(bytes);
    *smallest = 1;
    *largest = 0;
    int bad = all ? model->ops->get(all, trainer->load, bytes) : lm_fail("no memory for the load of the experts");
    for (int64_t block = 0; block < c->layers && !bad; block++) {
        const double *load = all + block * c->experts;
        double total = 0;
        for (int64_t e = 0; e < c->experts; e++) total += load[e];
        for (int64_t e = 0; e < c->experts && total > 0; e++) {
            double share = load[e] / total;
            if (share < *smallest) *smallest = share;
            if (share > *largest) *largest = share;
        }
    }
    free(all);
    model->ops->zero(trainer->load, bytes);
    return bad;
}
