/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level decoder-only transformer with MoE layers, as one rank sees it: all dense parameters, the parameters of
 * its own experts, and what a forward keeps for the backward of the sequences that are this rank's. A block is
 *     middle = input + attention(norm(input))        output = middle + moe(norm(middle))
 * with the MoE part computed by Ferry for all of the rank's tokens at once, and the rest by the operations of lm/ops.h,
 * whose bits do not depend on how many sequences a rank has. Arrays are in the backend's memory unless marked host.
 */
#ifndef FERRY_LM_MODEL_H
#define FERRY_LM_MODEL_H

#include "lm/ops.h"

#include "ferry/ferry.h"

/* What is kept of a parameter, in this order wherever all three are walked. */
enum { LM_VALUE, LM_MOMENT1, LM_MOMENT2, LM_KINDS };

/* Symmetric memory: this rank's part, and where it sees every rank's. */
typedef struct lm_shared {
    void *mine;
    void *peer[LM_SHARDS];
} lm_shared;

/* One block's tape: arrays over the rank's tokens. H per token unless noted. */
typedef struct lm_tape {
    float *input, *attention_normed, *attention_scale /* 1 */, *qkv /* 3H */, *p /* heads * length */, *attended;
    float *middle, *routed, *routed_scale /* 1 */, *probability /* E */, *weights /* K */;
    int32_t *ids; /* K */
} lm_tape;

typedef struct lm_model {
    lm_config config;
    const lm_ops *ops;
    lm_layout layout;
    ferry_comm *comm;
    ferry_layer *layer;       /* one for all blocks */
    ferry_context **contexts; /* [layers], host */
    int rank, nranks;         /* of this node */
    int node, nodes;          /* see lm/outer.h */
    int64_t local_experts, first_expert;
    int64_t local_shards, first_shard, shard_sequences, local_sequences;
    int64_t piece; /* sequences that dense work takes at once */

    float *dense[LM_KINDS]; /* [layout.dense] each */
    lm_shared experts;      /* [LM_KINDS][local_experts * layout.per_expert] */
    uint16_t *expert_bf16;  /* what Ferry reads */
    float *turned;          /* transposes of the dense matrices, for the way back */

    lm_tape *tapes; /* [layers], host */
    float *last;    /* [tokens, H] output of the last block */
    float *stream;  /* [tokens, H] its gradient, carried backwards block by block */
    lm_attention attention;
    lm_router router;
    uint16_t *moe_in, *moe_out; /* [tokens, H] what goes to Ferry and comes back, both ways */
    float *dweights;            /* [tokens, K] */
    float *scratch;             /* [piece * length, 4H + bytes] */
    unsigned char *bytes;       /* [tokens] */
    unsigned char *target;      /* [tokens] the byte after each */
    unsigned char *staged;      /* [tokens], host: on the way to the two above */
    int32_t *token_count;       /* of the last forward */
    void **arrays;              /* host: all of the above, to be freed */
    int array_count;
} lm_model;

/* Collective. nodes * ranks divides LM_SHARDS; this rank's shards are those of node `node`. Parameters get their
 * initial values, which depend on config.seed alone. */
int lm_model_create(ferry_comm *comm, int node, int nodes, const lm_config *config, lm_model **model);
void lm_model_destroy(lm_model *model);

/* Collective. Zeroed symmetric memory of `bytes` bytes per rank. */
int lm_share(ferry_comm *comm, size_t bytes, const char *what, lm_shared *shared);
/* Collective. What every rank has put into shared memory before is there for all after. `doing` is for a failure. */
int lm_meet(const lm_model *model, const char *doing);

/* The vector of this rank's experts in one kind: [local_experts * per_expert]. */
float *lm_experts(const lm_model *model, int kind);
/* Call after values have changed: renews the copies that products read. */
void lm_model_refresh(lm_model *model);

/* Copies a whole tensor out of the model (collective in effect: peers must not change theirs meanwhile) or, for the
 * parts that this rank holds, into it. */
int lm_model_read(const lm_model *model, const lm_tensor *tensor, int kind, float *to);
void lm_model_write(lm_model *model, const lm_tensor *tensor, int kind, const float *from);

/* Collective. Runs the blocks over `sequences` windows (at most local_sequences; may be 0) of config.length bytes.
 * keep: a backward may follow. */
int lm_forward(lm_model *model, const unsigned char *const *windows, int64_t sequences, int keep);
/* Logits of sequence `sequence` of the last forward: [length, LM_BYTES], valid until the next call. */
float *lm_logits(lm_model *model, int64_t sequence);
/* After a forward of these windows (which hold length + 1 bytes): adds the sum of -log p of the next byte over the
 * sequences of each local shard to sums[shard * stride]. With gradients (dense[local_shards][layout.dense]; added to)
 * begins the way back: the loss counts `scale` times. */
void lm_loss(lm_model *model, const unsigned char *const *windows, int64_t sequences, float scale, float *dense,
             double *sums, int64_t stride);
/* Collective, after the lm_loss of a forward of all local sequences that kept. Adds to
 * dense[local_shards][layout.dense] and writes the gradient of the local experts. pull[layers][E]: see lm/router.h. */
int lm_backward(lm_model *model, float *dense, float *experts, const float *pull);

/* ---- Parts of the above, one block at a time: the dense ones over `sequences` sequences from `first` on ---- */
void lm_attend(lm_model *model, int64_t block, int64_t first, int64_t sequences);
void lm_attend_back(lm_model *model, int64_t block, int64_t first, int64_t sequences, const float *pull, float *dense);
int lm_mix(lm_model *model, int64_t block, int64_t tokens, int keep);
int lm_mix_back(lm_model *model, int64_t block, float *experts);

/* Sequences of the piece that begins at `first`, of `sequences` in all. */
int64_t lm_piece(const lm_model *model, int64_t first, int64_t sequences);
/* A piece of `sequences` sequences as parts of shards: it is within one shard, or made of whole ones. */
lm_parts lm_parts_of(const lm_model *model, int64_t sequences, int64_t stride);

#endif
