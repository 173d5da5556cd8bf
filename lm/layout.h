/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of a model, and where each of its parameters is. Dense parameters lie in one vector, the same on
 * every rank. Expert parameters exist once, on the rank of their expert: per tensor [local experts, rows, columns].
 * Gradients and moments have the same layout.
 */
#ifndef FERRY_LM_LAYOUT_H
#define FERRY_LM_LAYOUT_H

#include "ferry/ferry.h"

#include <stdint.h>

enum {
    LM_SHARDS = 8,  /* canonical shards of a batch: what a rank owns is a run of them */
    LM_BYTES = 256, /* the vocabulary */
    LM_NAME = 64
};

typedef struct lm_config {
    int64_t hidden, layers, heads;
    int64_t experts, slots, intermediate; /* experts: a multiple of LM_SHARDS */
    int64_t length, sequences;         /* bytes of a sequence; sequences of the global batch, a multiple of LM_SHARDS */
    int64_t warmup_steps, decay_steps; /* learning rate: linear up, then half a cosine down to `floor` at decay_steps */
    double learning_rate, floor, beta1, beta2, weight_decay, clip, balance;
    uint64_t seed;
    /* Where it computes; no part of what is trained, nor of checkpoints. */
    ferry_backend backend;
    int device;
} lm_config;

/* What `ferry train` trains unless told otherwise. */
lm_config lm_config_default(void);

/* The dense tensors of a block, in order. */
enum { LM_ATTENTION_NORM, LM_QKV, LM_PROJECTION, LM_MOE_NORM, LM_ROUTER, LM_BLOCK_TENSORS };
/* The expert tensors of a block, in order: shapes [E, I, H], [E, I, H], [E, H, I]. */
enum { LM_GATE, LM_UP, LM_DOWN, LM_EXPERT_TENSORS };

typedef struct lm_tensor {
    char name[LM_NAME];
    int dims;
    int64_t shape[3];
    int64_t count;  /* values, of all experts */
    int64_t offset; /* dense: in the dense vector; expert: in what one expert holds, shape[1] * shape[2] values */
    int expert;     /* 1: an expert tensor */
    int decays;     /* 1: weight decay applies */
    float spread;   /* standard deviation of the initial values; 0: they are 1 */
} lm_tensor;

typedef struct lm_layout {
    lm_tensor *tensors;     /* embedding, blocks, final norm, head, then the experts of the blocks */
    int count, dense_count; /* tensors in all; the first of them are dense */
    int64_t dense;          /* values of the dense vector */
    int64_t per_expert;     /* values that one expert holds over all blocks */
} lm_layout;

/* 0, or -1 when there is no memory. */
int lm_layout_init(lm_layout *layout, const lm_config *config);
void lm_layout_free(lm_layout *layout);

const lm_tensor *lm_embedding(const lm_layout *layout);
const lm_tensor *lm_block_tensor(const lm_layout *layout, int64_t block, int which);
const lm_tensor *lm_final_norm(const lm_layout *layout);
const lm_tensor *lm_head(const lm_layout *layout);
const lm_tensor *lm_expert_tensor(const lm_layout *layout, int64_t block, int which);
/* Where an expert tensor begins in the vector of a rank that holds `local` experts. */
int64_t lm_expert_offset(const lm_tensor *tensor, int64_t local);

#endif
