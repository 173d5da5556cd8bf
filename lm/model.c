/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and parameters of a model, and the walk through its blocks. */
#include "lm/model.h"

#include "lm/dense.h"
#include "lm/error.h"
#include "lm/random.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

enum { MAX_BLOCKS = 1024 };

/* `count` zeroed elements that live as long as the model; NULL counts as a failure at the end of `allocate`. */
static void *keep(lm_model *model, int64_t count, size_t element, int *failed) {
    size_t bytes = ((size_t)count * element + 63) / 64 * 64;
    void *block = model->block_count < MAX_BLOCKS ? aligned_alloc(64, bytes ? bytes : 64) : NULL;
    if (!block) {
        *failed = 1;
        return NULL;
    }
    memset(block, 0, bytes);
    return model->blocks[model->block_count++] = block;
}

static int allocate(lm_model *model) {
    const lm_config *c = &model->config;
    int64_t tokens = model->local_sequences * c->length, values = tokens * c->hidden, dense = model->layout.dense;
    int failed = 0;
    model->blocks = calloc(MAX_BLOCKS, sizeof *model->blocks);
    if (!model->blocks) return -1;
#define FLOATS(count) keep(model, count, sizeof(float), &failed)
    for (int kind = 0; kind < LM_KINDS; kind++) model->dense[kind] = FLOATS(dense);
    model->turned = FLOATS(dense);
    model->expert_bf16 = keep(model, model->local_experts * model->layout.per_expert, sizeof(uint16_t), &failed);
    model->last = FLOATS(values);
    model->stream = FLOATS(values);
    model->moe_in = keep(model, values, sizeof(uint16_t), &failed);
    model->moe_out = keep(model, values, sizeof(uint16_t), &failed);
    model->dweights = FLOATS(tokens * c->slots);
    model->scratch = FLOATS(c->length * (4 * c->hidden + LM_BYTES));
    model->tapes = keep(model, c->layers, sizeof *model->tapes, &failed);
    model->contexts = keep(model, c->layers, sizeof(ferry_context *), &failed);
    for (int64_t block = 0; block < c->layers && !failed; block++) {
        model->tapes[block] = (lm_tape){.input = FLOATS(values),
                                        .attention_normed = FLOATS(values),
                                        .attention_scale = FLOATS(tokens),
                                        .qkv = FLOATS(3 * values),
                                        .p = FLOATS(tokens * c->heads * c->length),
                                        .attended = FLOATS(values),
                                        .middle = FLOATS(values),
                                        .routed = FLOATS(values),
                                        .routed_scale = FLOATS(tokens),
                                        .probability = FLOATS(tokens * c->experts),
                                        .weights = FLOATS(tokens * c->slots),
                                        .ids = keep(model, tokens * c->slots, sizeof(int32_t), &failed)};
    }
#undef FLOATS
    return failed ? -1 : 0;
}

int lm_share(ferry_comm *comm, size_t bytes, const char *what, lm_shared *shared) {
    LM_TRY(lm_fail_status(ferry_sym_alloc(comm, bytes, &shared->mine), what));
    for (int r = 0; r < ferry_comm_size(comm); r++)
        LM_TRY(lm_fail_status(ferry_sym_peer(comm, shared->mine, r, &shared->peer[r]), what));
    return 0;
}

/* ---- Parameters ---- */

static float *experts_of(const lm_model *model, int rank, int kind) {
    return (float *)model->experts.peer[rank] + kind * model->local_experts * model->layout.per_expert;
}

float *lm_experts(const lm_model *model, int kind) { return experts_of(model, model->rank, kind); }

void lm_model_read(const lm_model *model, const lm_tensor *tensor, int kind, float *to) {
    if (!tensor->expert) {
        memcpy(to, model->dense[kind] + tensor->offset, (size_t)tensor->count * sizeof(float));
        return;
    }
    int64_t part = tensor->count / model->nranks;
    for (int r = 0; r < model->nranks; r++) {
        const float *from = experts_of(model, r, kind) + lm_expert_offset(tensor, model->local_experts);
        memcpy(to + r * part, from, (size_t)part * sizeof(float));
    }
}

void lm_model_write(lm_model *model, const lm_tensor *tensor, int kind, const float *from) {
    if (!tensor->expert) {
        memcpy(model->dense[kind] + tensor->offset, from, (size_t)tensor->count * sizeof(float));
        return;
    }
    int64_t part = tensor->count / model->nranks;
    memcpy(lm_experts(model, kind) + lm_expert_offset(tensor, model->local_experts), from + model->rank * part,
           (size_t)part * sizeof(float));
}

/* Value i of a tensor (experts counted over all ranks) depends on the seed, the tensor and i. */
static void initialise(lm_model *model) {
    for (int n = 0; n < model->layout.count; n++) {
        const lm_tensor *tensor = &model->layout.tensors[n];
        int64_t count = tensor->expert ? tensor->count / model->nranks : tensor->count;
        int64_t first = tensor->expert ? model->rank * count : 0;
        float *to = tensor->expert ? lm_experts(model, LM_VALUE) + lm_expert_offset(tensor, model->local_experts)
                                   : model->dense[LM_VALUE] + tensor->offset;
        for (int64_t i = 0; i < count; i++) {
            uint32_t purpose = LM_RANDOM_TENSOR + (uint32_t)n;
            float normal = lm_random_normal(model->config.seed, purpose, (uint64_t)(first + i));
            to[i] = tensor->spread > 0 ? tensor->spread * normal : 1.0f;
        }
    }
}

void lm_model_refresh(lm_model *model) {
    lm_round(model->expert_bf16, lm_experts(model, LM_VALUE), model->local_experts * model->layout.per_expert);
    for (int n = 0; n < model->layout.dense_count; n++) {
        const lm_tensor *t = &model->layout.tensors[n];
        if (t->dims < 2) continue;
        lm_transpose(model->turned + t->offset, model->dense[LM_VALUE] + t->offset, t->shape[1], t->shape[0],
                     t->shape[1]);
    }
}

/* ---- Life ---- */

static int create_layer(lm_model *model) {
    const lm_config *c = &model->config;
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = c->hidden;
    config.intermediate = c->intermediate;
    config.experts = c->experts;
    config.slots = c->slots;
    config.max_tokens = model->local_sequences * c->length;
    LM_TRY(lm_fail_status(ferry_layer_create(model->comm, &config, &model->layer), "creating the MoE layer"));
    for (int64_t block = 0; block < c->layers; block++)
        LM_TRY(lm_fail_status(ferry_context_create(model->layer, NULL, &model->contexts[block]),
                              "creating a context of the MoE layer"));
    return 0;
}

static int create(lm_model *model) {
    const lm_config *c = &model->config;
    if (lm_layout_init(&model->layout, c) || allocate(model) ||
        lm_attention_init(&model->attention, c->length, c->hidden, c->heads))
        return lm_fail("no memory for the model on rank %d", model->rank);
    size_t bytes = (size_t)(LM_KINDS * model->local_experts * model->layout.per_expert) * sizeof(float);
    LM_TRY(lm_share(model->comm, bytes, "sharing the experts", &model->experts));
    LM_TRY(create_layer(model));
    initialise(model);
    lm_model_refresh(model);
    return 0;
}

int lm_model_create(ferry_comm *comm, int node, int nodes, const lm_config *config, lm_model **model) {
    lm_model *m = calloc(1, sizeof *m);
    if (!m) return lm_fail("no memory for the model");
    m->config = *config;
    m->comm = comm;
    m->rank = ferry_comm_rank(comm);
    m->nranks = ferry_comm_size(comm);
    m->node = node;
    m->nodes = nodes;
    m->local_experts = config->experts / m->nranks;
    m->first_expert = m->rank * m->local_experts;
    m->local_shards = LM_SHARDS / (nodes * m->nranks);
    m->first_shard = (node * m->nranks + m->rank) * m->local_shards;
    m->shard_sequences = config->sequences / LM_SHARDS;
    m->local_sequences = m->local_shards * m->shard_sequences;
    m->router = (lm_router){.experts = config->experts, .slots = config->slots};
    if (create(m)) {
        lm_model_destroy(m);
        return -1;
    }
    *model = m;
    return 0;
}

void lm_model_destroy(lm_model *model) {
    if (!model) return;
    for (int64_t block = 0; model->contexts && block < model->config.layers; block++)
        ferry_context_destroy(model->contexts[block]);
    ferry_layer_destroy(model->layer);
    ferry_sym_free(model->comm, model->experts.mine);
    lm_attention_free(&model->attention);
    for (int i = 0; i < model->block_count; i++) free(model->blocks[i]);
    free(model->blocks);
    lm_layout_free(&model->layout);
    free(model);
}

/* ---- The walk ---- */

int lm_forward(lm_model *model, const unsigned char *const *windows, int64_t sequences, int keep_tape) {
    int64_t h = model->config.hidden, length = model->config.length;
    const float *embedding = model->dense[LM_VALUE] + lm_embedding(&model->layout)->offset;
    float *input = model->tapes[0].input;
    for (int64_t s = 0; s < sequences; s++) {
        for (int64_t t = 0; t < length; t++, input += h)
            memcpy(input, embedding + windows[s][t] * h, (size_t)h * sizeof(float));
    }
    for (int64_t block = 0; block < model->config.layers; block++) {
        for (int64_t s = 0; s < sequences; s++) lm_attend(model, block, s);
        LM_TRY(lm_mix(model, block, sequences * length, keep_tape));
    }
    return 0;
}

float *lm_logits(lm_model *model, int64_t sequence) {
    int64_t h = model->config.hidden, length = model->config.length;
    float *normed = model->scratch, *scale = normed + length * h, *logits = normed + 4 * length * h;
    const float *values = model->dense[LM_VALUE];
    lm_norm(normed, scale, model->last + sequence * length * h, values + lm_final_norm(&model->layout)->offset, length,
            h);
    lm_matmul(logits, LM_BYTES, normed, h, 1, values + lm_head(&model->layout)->offset, LM_BYTES, length, LM_BYTES, h,
              0);
    return logits;
}

double lm_loss(lm_model *model, int64_t sequence, const unsigned char *window, float scale, float *gradient) {
    int64_t h = model->config.hidden, length = model->config.length;
    float *logits = lm_logits(model, sequence);
    double loss = lm_cross_entropy(logits, window + 1, length, LM_BYTES, gradient ? scale : 0);
    if (!gradient) return loss;
    const float *normed = model->scratch, *norm_scale = normed + length * h;
    float *dnormed = model->scratch + 2 * length * h, *stream = model->stream + sequence * length * h;
    int64_t head = lm_head(&model->layout)->offset, norm = lm_final_norm(&model->layout)->offset;
    lm_matmul(dnormed, h, logits, LM_BYTES, 1, model->turned + head, h, length, h, LM_BYTES, 0);
    lm_matmul(gradient + head, LM_BYTES, normed, 1, h, logits, LM_BYTES, h, LM_BYTES, length, 1);
    memset(stream, 0, (size_t)(length * h) * sizeof(float));
    lm_norm_back(stream, gradient + norm, dnormed, model->last + sequence * length * h, norm_scale,
                 model->dense[LM_VALUE] + norm, length, h);
    return loss;
}

int lm_backward(lm_model *model, const unsigned char *const *windows, float *dense, float *experts, const float *pull) {
    int64_t h = model->config.hidden, length = model->config.length, sequences = model->local_sequences;
    int64_t per_shard = model->shard_sequences, size = model->layout.dense;
    for (int64_t block = model->config.layers - 1; block >= 0; block--) {
        LM_TRY(lm_mix_back(model, block, experts));
        for (int64_t s = 0; s < sequences; s++)
            lm_attend_back(model, block, s, pull + block * model->config.experts, dense + s / per_shard * size);
    }
    int64_t embedding = lm_embedding(&model->layout)->offset;
    const float *stream = model->stream;
    for (int64_t s = 0; s < sequences; s++) {
        for (int64_t t = 0; t < length; t++, stream += h) {
            float *to = dense + s / per_shard * size + embedding + windows[s][t] * h;
            for (int64_t i = 0; i < h; i++) to[i] += stream[i];
        }
    }
    return 0;
}
