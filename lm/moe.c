/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE part of a block: this rank's tokens through Ferry, and back. */
#include "lm/error.h"
#include "lm/model.h"

/* The local experts' matrices of one tensor inside a vector laid out like the rank's experts. */
static ferry_matrices matrices(const lm_model *model, int64_t block, int which, void *vector, ferry_dtype dtype) {
    const lm_tensor *tensor = lm_expert_tensor(&model->layout, block, which);
    int64_t offset = lm_expert_offset(tensor, model->local_experts) * (dtype == FERRY_BF16 ? 2 : 4);
    return (ferry_matrices){.base = (char *)vector + offset,
                            .expert_stride = tensor->shape[1] * tensor->shape[2],
                            .row_stride = tensor->shape[2],
                            .dtype = dtype};
}

static ferry_weights params(const lm_model *model, int64_t block) {
    return (ferry_weights){.gate = matrices(model, block, LM_GATE, model->expert_bf16, FERRY_BF16),
                           .up = matrices(model, block, LM_UP, model->expert_bf16, FERRY_BF16),
                           .down = matrices(model, block, LM_DOWN, model->expert_bf16, FERRY_BF16)};
}

int lm_mix(lm_model *model, int64_t block, int64_t tokens, int keep) {
    const lm_tape *tape = &model->tapes[block];
    int64_t values = tokens * model->config.hidden;
    model->ops->round(model->moe_in, tape->routed, values);
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = model->token_count;
    args.x = model->moe_in;
    args.ids = tape->ids;
    args.ids_dtype = FERRY_I32;
    args.weights = tape->weights;
    args.params = params(model, block);
    args.out = model->moe_out;
    args.context = keep ? model->contexts[block] : NULL;
    args.stream = model->ops->stream();
    LM_TRY(lm_fail_status(ferry_forward(model->layer, &args), "the forward of a MoE layer"));
    float *output = block + 1 < model->config.layers ? model->tapes[block + 1].input : model->last;
    model->ops->add_bf16(output, tape->middle, model->moe_out, values);
    return 0;
}

int lm_mix_back(lm_model *model, int64_t block, float *experts) {
    model->ops->round(model->moe_in, model->stream,
                      model->local_sequences * model->config.length * model->config.hidden);
    ferry_backward_args args;
    ferry_backward_args_init(&args);
    args.context = model->contexts[block];
    args.parts = FERRY_BACKWARD_ALL;
    args.dout = model->moe_in;
    args.params = params(model, block);
    args.dx = model->moe_out;
    args.dweights = model->dweights;
    args.stream = model->ops->stream();
    args.grads.gate.to = matrices(model, block, LM_GATE, experts, FERRY_F32);
    args.grads.up.to = matrices(model, block, LM_UP, experts, FERRY_F32);
    args.grads.down.to = matrices(model, block, LM_DOWN, experts, FERRY_F32);
    return lm_fail_status(ferry_backward(model->layer, &args), "the backward of a MoE layer");
}
