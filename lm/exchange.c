/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over the ranks' shards through symmetric memory. Between two barriers a piece of it is either written by its
 * owner or read by all: sums are written before the barrier of lm_exchange_totals and read after it; gradients and
 * expert norms are written before the first barrier of lm_exchange_gradients and read after it; slices are written
 * between its barriers and read after the second. Writing again comes after a barrier that every reader has passed.
 * With several nodes, what is written is first made the sum over all of them, or gathered from them.
 */
#include "lm/error.h"
#include "lm/trainer.h"

int64_t lm_exchange_stride(const lm_trainer *trainer) {
    return 1 + trainer->model->config.layers * trainer->model->config.experts;
}

/* Of this rank's shards. */
static size_t sums_bytes(const lm_trainer *trainer) {
    return (size_t)(trainer->model->local_shards * lm_exchange_stride(trainer)) * sizeof(double);
}

int lm_exchange_create(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    size_t dense = (size_t)model->layout.dense * sizeof(float), shards = (size_t)model->local_shards;
    LM_TRY(lm_share(model->comm, (size_t)model->nodes * sums_bytes(trainer), "sharing sums", &trainer->sums));
    LM_TRY(lm_share(model->comm, shards * dense, "sharing gradients", &trainer->gradients));
    LM_TRY(lm_share(model->comm, dense, "sharing summed gradients", &trainer->slices));
    return lm_share(model->comm, (size_t)model->local_experts * sizeof(double), "sharing norms", &trainer->norms);
}

void lm_exchange_destroy(lm_trainer *trainer) {
    ferry_comm *comm = trainer->model->comm;
    ferry_sym_free(comm, trainer->norms.mine);
    ferry_sym_free(comm, trainer->slices.mine);
    ferry_sym_free(comm, trainer->gradients.mine);
    ferry_sym_free(comm, trainer->sums.mine);
}

double *lm_exchange_sums(lm_trainer *trainer, int64_t shard) {
    const lm_model *model = trainer->model;
    return (double *)trainer->sums.mine + (model->node * model->local_shards + shard) * lm_exchange_stride(trainer);
}

int lm_exchange_totals(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    int64_t count = lm_exchange_stride(trainer), of_rank = model->local_shards * count;
    if (model->nodes > 1)
        LM_TRY(lm_outer_gather(trainer->outer, lm_exchange_sums(trainer, 0), trainer->sums.mine, sums_bytes(trainer)));
    LM_TRY(lm_meet(model, "waiting for all losses"));
    model->ops->zero(trainer->totals, (size_t)count * sizeof(double));
    for (int node = 0; node < model->nodes; node++) {
        for (int r = 0; r < model->nranks; r++) {
            const double *from = (const double *)trainer->sums.peer[r] + node * of_rank;
            for (int64_t shard = 0; shard < model->local_shards; shard++, from += count)
                model->ops->add_doubles(trainer->totals, from, count);
        }
    }
    return 0;
}

/* The dense vector is cut into one slice per rank; slice `rank` is [begin, end). */
static int64_t slice_begin(const lm_model *model, int rank) { return model->layout.dense * rank / model->nranks; }

static void sum_slice(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    int64_t begin = slice_begin(model, model->rank), end = slice_begin(model, model->rank + 1);
    float *sum = trainer->slices.mine;
    model->ops->zero(sum + begin, (size_t)(end - begin) * sizeof(float));
    for (int r = 0; r < model->nranks; r++) {
        const float *from = trainer->gradients.peer[r];
        for (int64_t shard = 0; shard < model->local_shards; shard++, from += model->layout.dense)
            model->ops->add(sum + begin, from + begin, end - begin);
    }
}

static void measure_experts(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    double *norms = trainer->norms.mine;
    model->ops->zero(norms, (size_t)model->local_experts * sizeof(double));
    for (int n = model->layout.dense_count; n < model->layout.count; n++) {
        const lm_tensor *tensor = &model->layout.tensors[n];
        int64_t size = tensor->shape[1] * tensor->shape[2];
        const float *gradient = trainer->expert_gradient + lm_expert_offset(tensor, model->local_experts);
        model->ops->square_sums(norms, gradient, size, model->local_experts);
    }
}

int lm_exchange_gradients(lm_trainer *trainer) {
    const lm_model *model = trainer->model;
    int64_t first = slice_begin(model, model->rank), next = slice_begin(model, model->rank + 1);
    LM_TRY(lm_outer_sum(trainer->outer, trainer->expert_gradient, model->local_experts * model->layout.per_expert));
    measure_experts(trainer);
    LM_TRY(lm_meet(model, "waiting for all gradients"));
    sum_slice(trainer);
    LM_TRY(lm_outer_sum(trainer->outer, (float *)trainer->slices.mine + first, next - first));
    LM_TRY(lm_meet(model, "waiting for all summed gradients"));
    for (int r = 0; r < model->nranks; r++) {
        int64_t begin = slice_begin(model, r), end = slice_begin(model, r + 1);
        model->ops->copy(trainer->dense_gradient + begin, (const float *)trainer->slices.peer[r] + begin,
                         (size_t)(end - begin) * sizeof(float));
    }
    model->ops->zero(trainer->squares, sizeof(double));
    model->ops->square_sums(trainer->squares, trainer->dense_gradient, model->layout.dense, 1);
    for (int r = 0; r < model->nranks; r++)
        model->ops->add_up(trainer->squares, trainer->norms.peer[r], model->local_experts);
    return 0;
}
