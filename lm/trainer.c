/* SPDX-License-Identifier: Apache-2.0 */
/* A training step, an evaluation on held-out text, and the experts' load. */
#include "lm/trainer.h"

#include "lm/adamw.h"
#include "lm/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int prepare(lm_trainer *trainer, ferry_comm *comm, const ferry_bootstrap *across, const lm_config *config) {
    size_t pairs = (size_t)(config->layers * config->experts);
    LM_TRY(lm_outer_create(across, &trainer->outer));
    LM_TRY(
        lm_model_create(comm, lm_outer_node(trainer->outer), lm_outer_nodes(trainer->outer), config, &trainer->model));
    const lm_model *model = trainer->model;
    trainer->load = calloc(pairs, sizeof *trainer->load);
    trainer->totals = calloc(1 + pairs, sizeof *trainer->totals);
    trainer->pull = calloc(pairs, sizeof *trainer->pull);
    trainer->windows = calloc((size_t)model->local_sequences, sizeof *trainer->windows);
    trainer->dense_gradient = calloc((size_t)model->layout.dense, sizeof(float));
    trainer->expert_gradient = calloc((size_t)(model->local_experts * model->layout.per_expert), sizeof(float));
    if (!trainer->load || !trainer->totals || !trainer->pull || !trainer->windows || !trainer->dense_gradient ||
        !trainer->expert_gradient)
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
    if (trainer->model) lm_exchange_destroy(trainer);
    lm_model_destroy(trainer->model);
    lm_outer_destroy(trainer->outer);
    free(trainer->load);
    free(trainer->totals);
    free(trainer->pull);
    free(trainer->windows);
    free(trainer->dense_gradient);
    free(trainer->expert_gradient);
    free(trainer);
}

/* Slots per expert of this rank's shards in the last forward. */
static void count_slots(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    int64_t per_shard = model->shard_sequences * c->length * c->slots;
    for (int64_t shard = 0; shard < model->local_shards; shard++) {
        double *counts = lm_exchange_sums(trainer, shard) + 1;
        memset(counts, 0, (size_t)(c->layers * c->experts) * sizeof(double));
        for (int64_t block = 0; block < c->layers; block++, counts += c->experts) {
            const int32_t *ids = model->tapes[block].ids + shard * per_shard;
            for (int64_t i = 0; i < per_shard; i++) counts[ids[i]] += 1;
        }
    }
}

/* From the batch's slots per expert: the load, and the pull of the load-balancing term on the probabilities. */
static void use_counts(lm_trainer *trainer) {
    const lm_config *c = &trainer->model->config;
    double tokens = (double)(c->sequences * c->length), slots = tokens * (double)c->slots;
    for (int64_t i = 0; i < c->layers * c->experts; i++) {
        double count = trainer->totals[1 + i];
        trainer->load[i] += (int64_t)count;
        trainer->pull[i] = (float)(c->balance * (double)c->experts * (count / slots) / tokens);
    }
}

static void optimize(lm_trainer *trainer) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    double norm = trainer->gradient_norm, scale = norm > c->clip ? c->clip / norm : 1;
    for (int n = 0; n < model->layout.count; n++) {
        const lm_tensor *t = &model->layout.tensors[n];
        int64_t at = t->expert ? lm_expert_offset(t, model->local_experts) : t->offset;
        int64_t count = t->expert ? t->count / model->nranks : t->count;
        float *vectors[LM_KINDS];
        for (int kind = 0; kind < LM_KINDS; kind++)
            vectors[kind] = (t->expert ? lm_experts(model, kind) : model->dense[kind]) + at;
        const float *gradient = (t->expert ? trainer->expert_gradient : trainer->dense_gradient) + at;
        lm_adamw(c, trainer->step, vectors[LM_VALUE], vectors[LM_MOMENT1], vectors[LM_MOMENT2], gradient, count, scale,
                 t->decays);
    }
    lm_model_refresh(model);
}

/* The same on all ranks, so they all end here or none. */
static int check_finite(const lm_trainer *trainer, const char *what, double value) {
    if (isfinite(value)) return 0;
    return lm_fail("after %" PRId64 " steps %s is %g: the training has diverged; go on from an earlier checkpoint",
                   trainer->step, what, value);
}

int lm_trainer_step(lm_trainer *trainer) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    int64_t first = model->first_shard * model->shard_sequences, bytes = c->sequences * c->length;
    float *gradients = trainer->gradients.mine;
    for (int64_t s = 0; s < model->local_sequences; s++)
        trainer->windows[s] = lm_text_sample(trainer->text, c->seed, trainer->step, first + s, c->sequences, c->length);
    LM_TRY(lm_forward(model, trainer->windows, model->local_sequences, 1));

    memset(gradients, 0, (size_t)(model->local_shards * model->layout.dense) * sizeof(float));
    for (int64_t shard = 0; shard < model->local_shards; shard++) *lm_exchange_sums(trainer, shard) = 0;
    for (int64_t s = 0; s < model->local_sequences; s++) {
        int64_t shard = s / model->shard_sequences;
        *lm_exchange_sums(trainer, shard) += lm_loss(model, s, trainer->windows[s], (float)(1.0 / (double)bytes),
                                                     gradients + shard * model->layout.dense);
    }
    count_slots(trainer);
    LM_TRY(lm_exchange_totals(trainer));
    use_counts(trainer);
    trainer->loss = trainer->totals[0] / (double)bytes;

    LM_TRY(lm_backward(model, trainer->windows, gradients, trainer->expert_gradient, trainer->pull));
    LM_TRY(lm_exchange_gradients(trainer));
    LM_TRY(check_finite(trainer, "the loss", trainer->loss));
    LM_TRY(check_finite(trainer, "the norm of the gradient", trainer->gradient_norm));
    optimize(trainer);
    trainer->step++;
    return 0;
}

int64_t lm_trainer_windows(const lm_trainer *trainer) {
    const lm_config *c = &trainer->model->config;
    return lm_text_windows(trainer->text, c->length) / c->sequences * c->sequences;
}

int lm_trainer_evaluate(lm_trainer *trainer, int64_t windows, double *loss) {
    lm_model *model = trainer->model;
    const lm_config *c = &model->config;
    int64_t first = model->first_shard * model->shard_sequences, all = lm_text_windows(trainer->text, c->length);
    for (int64_t shard = 0; shard < model->local_shards; shard++) *lm_exchange_sums(trainer, shard) = 0;
    for (int64_t begin = 0; begin < windows; begin += c->sequences) {
        for (int64_t s = 0; s < model->local_sequences; s++)
            trainer->windows[s] = lm_text_window(trainer->text, (begin + first + s) * all / windows, c->length);
        LM_TRY(lm_forward(model, trainer->windows, model->local_sequences, 0));
        for (int64_t s = 0; s < model->local_sequences; s++)
            *lm_exchange_sums(trainer, s / model->shard_sequences) += lm_loss(model, s, trainer->windows[s], 0, NULL);
    }
    LM_TRY(lm_exchange_totals(trainer));
    *loss = trainer->totals[0] / (double)(windows * c->length);
    LM_TRY(lm_fail_status(ferry_barrier(model->comm), "waiting for all ranks to read the held-out loss"));
    return check_finite(trainer, "the held-out loss", *loss);
}

void lm_trainer_take_load(lm_trainer *trainer, double *smallest, double *largest) {
    const lm_config *c = &trainer->model->config;
    *smallest = 1;
    *largest = 0;
    for (int64_t block = 0; block < c->layers; block++) {
        int64_t *load = trainer->load + block * c->experts;
        double total = 0;
        for (int64_t e = 0; e < c->experts; e++) total += (double)load[e];
        for (int64_t e = 0; e < c->experts && total > 0; e++) {
            double share = (double)load[e] / total;
            if (share < *smallest) *smallest = share;
            if (share > *largest) *largest = share;
        }
        memset(load, 0, (size_t)c->experts * sizeof *load);
    }
}
