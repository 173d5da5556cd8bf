/* SPDX-License-Identifier: Apache-2.0 */
/* A block around its MoE layer: norm, attention, residual, norm and router; forward and backward of some sequences. */
#include "lm/model.h"

static float *value(const lm_model *model, int64_t block, int which) {
    return model->dense[LM_VALUE] + lm_block_tensor(&model->layout, block, which)->offset;
}

void lm_attend(lm_model *model, int64_t block, int64_t first, int64_t sequences) {
    const lm_ops *ops = model->ops;
    lm_tape *tape = &model->tapes[block];
    int64_t h = model->config.hidden, length = model->config.length, experts = model->config.experts;
    int64_t slots = model->config.slots, token = first * length, rows = sequences * length, at = token * h;
    float *normed = tape->attention_normed + at, *qkv = tape->qkv + 3 * at, *attended = tape->attended + at;
    float *middle = tape->middle + at, *routed = tape->routed + at, *p = tape->probability + token * experts;

    ops->norm(normed, tape->attention_scale + token, tape->input + at, value(model, block, LM_ATTENTION_NORM), rows, h);
    ops->linear(qkv, normed, value(model, block, LM_QKV), rows, h, 3 * h, 0);
    ops->attend(&model->attention, attended, tape->p + token * model->config.heads * length, qkv, sequences);
    ops->copy(middle, tape->input + at, (size_t)(rows * h) * sizeof(float));
    ops->linear(middle, attended, value(model, block, LM_PROJECTION), rows, h, h, 1);

    ops->norm(routed, tape->routed_scale + token, middle, value(model, block, LM_MOE_NORM), rows, h);
    ops->linear(p, routed, value(model, block, LM_ROUTER), rows, h, experts, 0);
    ops->choose(&model->router, p, tape->ids + token * slots, tape->weights + token * slots, rows);
}

/* dx = dy W^T through the turned copy, and the gradient of W += x^T dy, for W [in, out]. */
static void linear_back(lm_model *model, int64_t block, int which, float *dx, float *gradient, lm_parts parts,
                        const float *dy, const float *x) {
    const lm_tensor *tensor = lm_block_tensor(&model->layout, block, which);
    int64_t in = tensor->shape[0], out = tensor->shape[1];
    model->ops->linear(dx, dy, model->turned + tensor->offset, parts.count * parts.rows, out, in, 0);
    model->ops->linear_back(gradient + tensor->offset, parts, dy, x, in, out);
}

static void norm_back(lm_model *model, int64_t block, int which, float *dx, float *gradient, lm_parts parts,
                      const float *dy, const float *x, const float *scale) {
    const lm_tensor *tensor = lm_block_tensor(&model->layout, block, which);
    model->ops->norm_back(dx, gradient + tensor->offset, parts, dy, x, scale, model->dense[LM_VALUE] + tensor->offset,
                          model->config.hidden);
}

/* model->stream holds the gradient of the block's output and becomes that of its input; Ferry's dx is in moe_out. */
void lm_attend_back(lm_model *model, int64_t block, int64_t first, int64_t sequences, const float *pull, float *dense) {
    const lm_ops *ops = model->ops;
    lm_tape *tape = &model->tapes[block];
    lm_parts parts = lm_parts_of(model, sequences, model->layout.dense);
    int64_t h = model->config.hidden, length = model->config.length, experts = model->config.experts;
    int64_t slots = model->config.slots, token = first * length, rows = sequences * length, at = token * h;
    float *stream = model->stream + at, *wide = model->scratch, *narrow = wide + 3 * rows * h;
    float *gradient = dense + first / model->shard_sequences * model->layout.dense;

    ops->choose_back(&model->router, wide, model->dweights + token * slots, tape->probability + token * experts,
                     tape->ids + token * slots, tape->weights + token * slots, pull, rows);
    linear_back(model, block, LM_ROUTER, narrow, gradient, parts, wide, tape->routed + at);
    ops->add_bf16(narrow, narrow, model->moe_out + at, rows * h);
    norm_back(model, block, LM_MOE_NORM, stream, gradient, parts, narrow, tape->middle + at,
              tape->routed_scale + token);

    linear_back(model, block, LM_PROJECTION, narrow, gradient, parts, stream, tape->attended + at);
    ops->attend_back(&model->attention, wide, narrow, tape->p + token * model->config.heads * length,
                     tape->qkv + 3 * at, sequences);
    linear_back(model, block, LM_QKV, narrow, gradient, parts, wide, tape->attention_normed + at);
    norm_back(model, block, LM_ATTENTION_NORM, stream, gradient, parts, narrow, tape->input + at,
              tape->attention_scale + token);
}
