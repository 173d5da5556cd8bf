/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and parameters of a model, and the walk through its blocks. */
#include "lm/model.h"

#include "lm/error.h"
#include "lm/random.h"

#include <stdlib.h>
#include <string.h>

/* ---- Memory ---- */

enum { MAX_ARRAYS = 1024 };

/* `count` zeroed elements that live as long as the model; NULL counts as a failure at the end of `allocate`. */
static void *new_array(lm_model *model, int64_t count, size_t element, int *failed) {
    void *array = model->array_count < MAX_ARRAYS ? model->ops->alloc((size_t)count * element) : NULL;
    if (!array) {
        *failed = 1;
        return NULL;
    }
    return model->arrays[model->array_count++] = array;
}

static int allocate(lm_model *model) {
    const lm_config *c = &model->config;
    int64_t tokens = model->local_sequences * c->length, values = tokens * c->hidden, dense = model->layout.dense;
    int failed = 0;
    model->arrays = calloc(MAX_ARRAYS, sizeof *model->arrays);
    model->tapes = calloc((size_t)c->layers, sizeof *model->tapes);
    model->contexts = calloc((size_t)c->layers, sizeof *model->contexts);
    model->staged = calloc((size_t)tokens, 1);
    if (!model->arrays || !model->tapes || !model->contexts || !model->staged) return -1;
#define FLOATS(count) new_array(model, count, sizeof(float), &failed)
    for (int kind = 0; kind < LM_KINDS; kind++) model->dense[kind] = FLOATS(dense);
    model->turned = FLOATS(dense);
    model->expert_bf16 = new_array(model, model->local_experts * model->layout.per_expert, sizeof(uint16_t), &failed);
    model->last = FLOATS(values);
    model->stream = FLOATS(values);
    model->moe_in = new_array(model, values, sizeof(uint16_t), &failed);
    model->moe_out = new_array(model, values, sizeof(uint16_t), &failed);
    model->dweights = FLOATS(tokens * c->slots);
    model->scratch = FLOATS(model->piece * c->length * (4 * c->hidden + LM_BYTES));
    model->bytes = new_array(model, tokens, 1, &failed);
    model->target = new_array(model, tokens, 1, &failed);
    model->token_count = new_array(model, 1, sizeof(int32_t), &failed);
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
                                        .ids = new_array(model, tokens * c->slots, sizeof(int32_t), &failed)};
    }
    return failed ? -1 : 0;
}

/* The tables are computed on the host. */
static int make_attention(lm_model *model) {
    const lm_config *c = &model->config;
    int64_t depth = c->hidden / c->heads, angles = c->length * (depth / 2);
    lm_attention host, *attention = &model->attention;
    int failed = 0;
    if (lm_attention_init(&host, c->length, c->hidden, c->heads)) return -1;
    *attention = host;
    attention->cosine = FLOATS(angles);
    attention->sine = FLOATS(angles);
    attention->scratch = FLOATS(model->piece * c->heads * c->length * c->length + c->length * depth);
    if (!failed) {
        model->ops->put(attention->cosine, host.cosine, (size_t)angles * sizeof(float));
        model->ops->put(attention->sine, host.sine, (size_t)angles * sizeof(float));
    }
    lm_attention_free(&host);
    return failed ? -1 : 0;
}
#undef FLOATS

int lm_share(ferry_comm *comm, size_t bytes, const char *what, lm_shared *shared) {
    LM_TRY(lm_fail_status(ferry_sym_alloc(comm, bytes, &shared->mine), what));
    for (int r = 0; r < ferry_comm_size(comm); r++)
        LM_TRY(lm_fail_status(ferry_sym_peer(comm, shared->mine, r, &shared->peer[r]), what));
    return 0;
}

int lm_meet(const lm_model *model, const char *doing) {
    if (model->nranks > 1) LM_TRY(model->ops->wait());
    return lm_fail_status(ferry_barrier(model->comm), doing);
}

/* ---- Parameters ---- */

static float *experts_of(const lm_model *model, int rank, int kind) {
    return (float *)model->experts.peer[rank] + kind * model->local_experts * model->layout.per_expert;
}

float *lm_experts(const lm_model *model, int kind) { return experts_of(model, model->rank, kind); }

int lm_model_read(const lm_model *model, const lm_tensor *tensor, int kind, float *to) {
    if (!tensor->expert)
        return model->ops->get(to, model->dense[kind] + tensor->offset, (size_t)tensor->count * sizeof(float));
    int64_t part = tensor->count / model->nranks;
    for (int r = 0; r < model->nranks; r++) {
        const float *from = experts_of(model, r, kind) + lm_expert_offset(tensor, model->local_experts);
        LM_TRY(model->ops->get(to + r * part, from, (size_t)part * sizeof(float)));
    }
    return 0;
}

void lm_model_write(lm_model *model, const lm_tensor *tensor, int kind, const float *from) {
    if (!tensor->expert) {
        model->ops->put(model->dense[kind] + tensor->offset, from, (size_t)tensor->count * sizeof(float));
        return;
    }
    int64_t part = tensor->count / model->nranks;
    model->ops->put(lm_experts(model, kind) + lm_expert_offset(tensor, model->local_experts), from + model->rank * part,
                    (size_t)part * sizeof(float));
}

/* Value i of a tensor (experts counted over all ranks) depends on the seed, the tensor and i. */
static int initialise(lm_model *model) {
    int64_t largest = 0;
    for (int n = 0; n < model->layout.count; n++) {
        if (model->layout.tensors[n].count > largest) largest = model->layout.tensors[n].count;
    }
    float *values = malloc((size_t)largest * sizeof(float));
    if (!values) return lm_fail("no memory for initial values on rank %d", model->rank);
    for (int n = 0; n < model->layout.count; n++) {
        const lm_tensor *tensor = &model->layout.tensors[n];
        int64_t count = tensor->expert ? tensor->count / model->nranks : tensor->count;
        int64_t first = tensor->expert ? model->rank * count : 0;
        for (int64_t i = first; i < first + count; i++) {
            float normal = lm_random_normal(model->config.seed, LM_RANDOM_TENSOR + (uint32_t)n, (uint64_t)i);
            values[i] = tensor->spread > 0 ? tensor->spread * normal : 1.0f;
        }
        lm_model_write(model, tensor, LM_VALUE, values);
    }
    free(values);
    return 0;
}

void lm_model_refresh(lm_model *model) {
    model->ops->round(model->expert_bf16, lm_experts(model, LM_VALUE), model->local_experts * model->layout.per_expert);
    for (int n = 0; n < model->layout.dense_count; n++) {
        const lm_tensor *t = &model->layout.tensors[n];
        if (t->dims < 2) continue;
        model->ops->transpose(model->turned + t->offset, model->dense[LM_VALUE] + t->offset, t->shape[0], t->shape[1]);
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
    if (lm_layout_init(&model->layout, c) || allocate(model) || make_attention(model))
        return lm_fail("no memory for the model on rank %d", model->rank);
    size_t bytes = (size_t)(LM_KINDS * model->local_experts * model->layout.per_expert) * sizeof(float);
    LM_TRY(lm_share(model->comm, bytes, "sharing the experts", &model->experts));
    LM_TRY(create_layer(model));
    LM_TRY(initialise(model));
    lm_model_refresh(model);
    return 0;
}

int lm_model_create(ferry_comm *comm, int node, int nodes, const lm_config *config, lm_model **model) {
    const lm_ops *ops = config->backend == FERRY_CUDA ? lm_ops_cuda : &lm_ops_cpu;
    if (!ops) return lm_fail("this build has no CUDA backend");
    LM_TRY(ops->open(config->device));
    lm_model *m = calloc(1, sizeof *m);
    if (!m) {
        ops->close();
        return lm_fail("no memory for the model");
    }
    m->ops = ops;
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
    m->piece = ops->whole ? m->local_sequences : 1;
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
    for (int i = 0; i < model->array_count; i++) model->ops->free(model->arrays[i]);
    model->ops->close();
    free(model->arrays);
    free(model->staged);
    free(model->contexts);
    free(model->tapes);
    lm_layout_free(&model->layout);
    free(model);
}

/* ---- The walk ---- */

int64_t lm_piece(const lm_model *model, int64_t first, int64_t sequences) {
    return sequences - first < model->piece ? sequences - first : model->piece;
}

lm_parts lm_parts_of(const lm_model *model, int64_t sequences, int64_t stride) {
    int64_t count = sequences > model->shard_sequences ? sequences / model->shard_sequences : 1;
    return (lm_parts){.count = count, .rows = sequences / count * model->config.length, .stride = stride};
}

/* Puts the bytes of the windows, from their byte `from` on, into an array of the model. */
static void put_bytes(lm_model *model, unsigned char *to, const unsigned char *const *windows, int64_t sequences,
                      int from) {
    size_t length = (size_t)model->config.length;
    for (int64_t s = 0; s < sequences; s++) memcpy(model->staged + (size_t)s * length, windows[s] + from, length);
    model->ops->put(to, model->staged, (size_t)sequences * length);
}

int lm_forward(lm_model *model, const unsigned char *const *windows, int64_t sequences, int keep) {
    int64_t tokens = sequences * model->config.length;
    int32_t count = (int32_t)tokens;
    put_bytes(model, model->bytes, windows, sequences, 0);
    model->ops->put(model->token_count, &count, sizeof count);
    model->ops->embed(model->tapes[0].input, model->dense[LM_VALUE] + lm_embedding(&model->layout)->offset,
                      model->bytes, tokens, model->config.hidden);
    for (int64_t block = 0; block < model->config.layers; block++) {
        for (int64_t s = 0, n; s < sequences; s += n) {
            n = lm_piece(model, s, sequences);
            lm_attend(model, block, s, n);
        }
        LM_TRY(lm_mix(model, block, tokens, keep));
    }
    return 0;
}

/* What the head leaves in model->scratch for the way back. */
typedef struct head_scratch {
    float *normed, *scale, *dnormed, *logits;
} head_scratch;

static head_scratch run_head(lm_model *model, int64_t first, int64_t sequences) {
    int64_t h = model->config.hidden, rows = sequences * model->config.length;
    const float *values = model->dense[LM_VALUE], *last = model->last + first * model->config.length * h;
    float *base = model->scratch;
    head_scratch at = {base, base + rows * h, base + 2 * rows * h, base + 4 * rows * h};
    model->ops->norm(at.normed, at.scale, last, values + lm_final_norm(&model->layout)->offset, rows, h);
    model->ops->linear(at.logits, at.normed, values + lm_head(&model->layout)->offset, rows, h, LM_BYTES, 0);
    return at;
}

float *lm_logits(lm_model *model, int64_t sequence) { return run_head(model, sequence, 1).logits; }

static void piece_loss(lm_model *model, int64_t first, int64_t sequences, float scale, float *gradient, double *sum,
                       int64_t stride) {
    const lm_ops *ops = model->ops;
    int64_t h = model->config.hidden, token = first * model->config.length, rows = sequences * model->config.length;
    lm_parts parts = lm_parts_of(model, sequences, stride);
    head_scratch at = run_head(model, first, sequences);
    ops->cross_entropy(sum, parts, at.logits, model->target + token, gradient ? scale : 0);
    if (!gradient) return;
    int64_t head = lm_head(&model->layout)->offset, norm = lm_final_norm(&model->layout)->offset;
    float *stream = model->stream + token * h;
    parts.stride = model->layout.dense;
    ops->linear(at.dnormed, at.logits, model->turned + head, rows, LM_BYTES, h, 0);
    ops->linear_back(gradient + head, parts, at.logits, at.normed, h, LM_BYTES);
    ops->zero(stream, (size_t)(rows * h) * sizeof(float));
    ops->norm_back(stream, gradient + norm, parts, at.dnormed, model->last + token * h, at.scale,
                   model->dense[LM_VALUE] + norm, h);
}

void lm_loss(lm_model *model, const unsigned char *const *windows, int64_t sequences, float scale, float *dense,
             double *sums, int64_t stride) {
    put_bytes(model, model->target, windows, sequences, 1);
    for (int64_t s = 0, n; s < sequences; s += n) {
        int64_t shard = s / model->shard_sequences;
        n = lm_piece(model, s, sequences);
        piece_loss(model, s, n, scale, dense ? dense + shard * model->layout.dense : NULL, sums + shard * stride,
                   stride);
    }
}

int lm_backward(lm_model *model, float *dense, float *experts, const float *pull) {
    int64_t sequences = model->local_sequences, size = model->layout.dense;
    for (int64_t block = model->config.layers - 1; block >= 0; block--) {
        LM_TRY(lm_mix_back(model, block, experts));
        for (int64_t s = 0, n; s < sequences; s += n) {
            n = lm_piece(model, s, sequences);
            lm_attend_back(model, block, s, n, pull + block * model->config.experts, dense);
        }
    }
    lm_parts shards = {model->local_shards, model->shard_sequences * model->config.length, size};
    model->ops->embed_back(dense + lm_embedding(&model->layout)->offset, shards, model->stream, model->bytes,
                           model->config.hidden);
    return 0;
}
