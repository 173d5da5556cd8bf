/* SPDX-License-Identifier: Apache-2.0 */
/* A block around its MoE layer: norm, attention, residual, norm and router; forward and backward of one sequence. */
#include "lm/dense.h"
#include "lm/model.h"

#include <string.h>

static float *value(const lm_model *model, int64_t block, int which) {
    return model->dense[LM_VALUE] + lm_block_tensor(&model->layout, block, which)->offset;
}

void lm_attend(lm_model *model, int64_t block, int64_t sequence) {
    lm_tape *tape = &model->tapes[block];
    int64_t h = model->config.hidden, length = model->config.length, experts = model->config.experts;
    int64_t slots = model->config.slots, token = sequence * length, at = token * h;
    float *normed = tape->attention_normed + at, *qkv = tape->qkv + 3 * at, *attended = tape->attended + at;
    float *middle = tape->middle + at, *routed = tape->routed + at, *p = tape->probability + token * experts;

    lm_norm(normed, tape->attention_scale + token, tape->input + at, value(model, block, LM_ATTENTION_NORM), length, h);
    lm_matmul(qkv, 3 * h, normed, h, 1, value(model, block, LM_QKV), 3 * h, length, 3 * h, h, 0);
    lm_attention_forward(&model->attention, attended, tape->p + token * model->config.heads * length, qkv);
    memcpy(middle, tape->input + at, (size_t)(length * h) * sizeof(float));
    lm_matmul(middle, h, attended, h, 1, value(model, block, LM_PROJECTION), h, length, h, h, 1);

    lm_norm(routed, tape->routed_scale + token, middle, value(model, block, LM_MOE_NORM), length, h);
    lm_matmul(p, experts, routed, h, 1, value(model, block, LM_ROUTER), experts, length, experts, h, 0);
    lm_router_choose(&model->router, p, tape->ids + token * slots, tape->weights + token * slots, length);
}

/* dx = dy W^T through the turned copy, and the gradient of W += x^T dy, for W [in, out]. */
static void linear_back(lm_model *model, int64_t block, int which, float *dx, float *gradient, const float *dy,
                        const float *x) {
    const lm_tensor *tensor = lm_block_tensor(&model->layout, block, which);
    int64_t in = tensor->shape[0], out = tensor->shape[1], length = model->config.length;
    lm_matmul(dx, in, dy, out, 1, model->turned + tensor->offset, in, length, in, out, 0);
    lm_matmul(gradient + tensor->offset, out, x, 1, in, dy, out, in, out, length, 1);
}

static void norm_back(lm_model *model, int64_t block, int which, float *dx, float *gradient, const float *dy,
                      const float *x, const float *scale) {
    const lm_tensor *tensor = lm_block_tensor(&model->layout, block, which);
    lm_norm_back(dx, gradient + tensor->offset, dy, x, scale, model->dense[LM_VALUE] + tensor->offset,
                 model->config.length, model->config.hidden);
}

/* model->stream holds the gradient of the block's output and becomes that of its input; Ferry's dx is in moe_out. */
void lm_attend_back(lm_model *model, int64_t block, int64_t sequence, const float *pull, float *gradient) {
    lm_tape *tape = &model->tapes[block];
    int64_t h = model->config.hidden, length = model->config.length, experts = model->config.experts;
    int64_t slots = model->config.slots, token = sequence * length, at = token * h;
    float *stream = model->stream + at, *wide = model->scratch, *narrow = wide + 3 * length * h;

    lm_router_back(&model->router, wide, model->dweights + token * slots, tape->probability + token * experts,
                   tape->ids + token * slots, tape->weights + token * slots, pull, length);
    linear_back(model, block, LM_ROUTER, narrow, gradient, wide, tape->routed + at);
    lm_add_bf16(narrow, narrow, model->moe_out + at, length * h);
    norm_back(model, block, LM_MOE_NORM, stream, gradient, narrow, tape->middle + at, tape->routed_scale + token);

    linear_back(model, block, LM_PROJECTION, narrow, gradient, stream, tape->attended + at);
    lm_attention_backward(&model->attention, wide, narrow, tape->p + token * model->config.heads * length,
                          tape->qkv + 3 * at);
    linear_back(model, block, LM_QKV, narrow, gradient, wide, tape->attention_normed + at);
    norm_back(model, block, LM_ATTENTION_NORM, stream, gradient, narrow, tape->input + at,
              tape->attention_scale + token);
}
