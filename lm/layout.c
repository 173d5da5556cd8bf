/* SPDX-License-Identifier: Apache-2.0 */
/* Names, shapes, places and initial spreads of all parameters. */
#include "lm/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

lm_config lm_config_default(void) {
    return (lm_config){.hidden = 128,
                       .layers = 2,
                       .heads = 4,
                       .experts = 8,
                       .slots = 2,
                       .intermediate = 128,
                       .length = 64,
                       .sequences = 32,
                       .warmup_steps = 50,
                       .decay_steps = 600,
                       .learning_rate = 4e-3,
                       .floor = 4e-4,
                       .beta1 = 0.9,
                       .beta2 = 0.98,
                       .weight_decay = 0.1,
                       .clip = 1.0,
                       .balance = 0.01,
                       .seed = 1};
}

/* block < 0: the tensor belongs to no block. */
static lm_tensor *add(lm_layout *layout, int64_t block, const char *name, int dims, int64_t a, int64_t b, int64_t c,
                      double spread) {
    lm_tensor *tensor = &layout->tensors[layout->count++];
    *tensor = (lm_tensor){.dims = dims, .shape = {a, b, c}, .spread = (float)spread, .decays = dims > 1};
    tensor->count = a * (dims > 1 ? b : 1) * (dims > 2 ? c : 1);
    if (block < 0) {
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
    } else {
        snprintf(tensor->name, sizeof tensor->name, "blocks.%lld.%s", (long long)block, name);
    }
    return tensor;
}

/* columns == 0: a vector of `rows` gains. */
static void add_dense(lm_layout *layout, int64_t block, const char *name, int64_t rows, int64_t columns,
                      double spread) {
    lm_tensor *tensor = add(layout, block, name, columns ? 2 : 1, rows, columns, 0, spread);
    tensor->offset = layout->dense;
    layout->dense += tensor->count;
    layout->dense_count = layout->count;
}

static void add_expert(lm_layout *layout, int64_t block, const char *name, int64_t experts, int64_t rows,
                       int64_t columns, double spread) {
    lm_tensor *tensor = add(layout, block, name, 3, experts, rows, columns, spread);
    tensor->expert = 1;
    tensor->offset = layout->per_expert;
    layout->per_expert += rows * columns;
}

int lm_layout_init(lm_layout *layout, const lm_config *config) {
    int64_t h = config->hidden, i = config->intermediate, e = config->experts, blocks = config->layers;
    double into_h = 1 / sqrt((double)h), into_i = 1 / sqrt((double)i), residual = 1 / sqrt(2.0 * (double)blocks);
    *layout = (lm_layout){0};
    layout->tensors = calloc((size_t)(3 + blocks * (LM_BLOCK_TENSORS + LM_EXPERT_TENSORS)), sizeof *layout->tensors);
    if (!layout->tensors) return -1;
    add_dense(layout, -1, "embedding", LM_BYTES, h, 0.5);
    for (int64_t b = 0; b < blocks; b++) {
        add_dense(layout, b, "attention_norm", h, 0, 0);
        add_dense(layout, b, "qkv", h, 3 * h, into_h);
        add_dense(layout, b, "projection", h, h, residual * into_h);
        add_dense(layout, b, "moe_norm", h, 0, 0);
        add_dense(layout, b, "router", h, e, 0.5 * into_h);
    }
    add_dense(layout, -1, "final_norm", h, 0, 0);
    add_dense(layout, -1, "head", h, LM_BYTES, 0.1 * into_h);
    for (int64_t b = 0; b < blocks; b++) {
        add_expert(layout, b, "experts.gate", e, i, h, into_h);
        add_expert(layout, b, "experts.up", e, i, h, into_h);
        add_expert(layout, b, "experts.down", e, h, i, residual * into_i);
    }
    return 0;
}

void lm_layout_free(lm_layout *layout) {
    free(layout->tensors);
    *layout = (lm_layout){0};
}

const lm_tensor *lm_embedding(const lm_layout *layout) { return &layout->tensors[0]; }

const lm_tensor *lm_block_tensor(const lm_layout *layout, int64_t block, int which) {
    return &layout->tensors[1 + block * LM_BLOCK_TENSORS + which];
}

const lm_tensor *lm_final_norm(const lm_layout *layout) { return &layout->tensors[layout->dense_count - 2]; }

const lm_tensor *lm_head(const lm_layout *layout) { return &layout->tensors[layout->dense_count - 1]; }

const lm_tensor *lm_expert_tensor(const lm_layout *layout, int64_t block, int which) {
    return &layout->tensors[layout->dense_count + block * LM_EXPERT_TENSORS + which];
}

int64_t lm_expert_offset(const lm_tensor *tensor, int64_t local) { return local * tensor->offset; }
