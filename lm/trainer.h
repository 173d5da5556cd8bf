/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training as one rank does it. A step's global batch has LM_SHARDS shards; a rank computes its shards one by one and
 * all ranks add the shards' losses and dense gradients in shard order, and the experts' squared gradient norms in
 * expert order. So every number of a step is the same whatever the number of ranks. With several nodes, each adds up
 * the gradients of its own shards so, and these sums are added in node order: numbers then depend on how many nodes
 * there are.
 */
#ifndef FERRY_LM_TRAINER_H
#define FERRY_LM_TRAINER_H

#include "lm/data.h"
#include "lm/model.h"
#include "lm/outer.h"

typedef struct lm_trainer {
    lm_model *model; /* owned */
    lm_outer *outer; /* owned */
    const lm_text *text;
    int64_t step;         /* steps done */
    int64_t fetched;      /* the step (counted like `step`) that the two below belong to: the last one, or, on a GPU,
                             one of the last few */
    double loss;          /* nats per byte */
    double gradient_norm; /* before clipping */
    /* below: of trainer.c and exchange.c; in the backend's memory but for `windows` */
    double *load;        /* [layers][E] slots that each expert got since the last lm_trainer_take_load */
    lm_shared sums;      /* [nodes][local shards][1 + layers * E] doubles: loss, slots per expert */
    lm_shared gradients; /* [local shards][dense] */
    lm_shared slices;    /* [dense] of which this rank's slice is the sum over all shards */
    lm_shared norms;     /* [local experts] doubles: squared gradient norm */
    double *totals;      /* [1 + layers * E] sums over all shards */
    double *squares;     /* the squared norm of the whole gradient */
    float *dense_gradient, *expert_gradient;
    float *pull;                   /* [layers][E] */
    const unsigned char **windows; /* [local sequences] */
} lm_trainer;

/* Collective. `across` joins this rank with those at its place of other nodes (NULL: there are none); it and the text
 * must outlive the trainer. */
int lm_trainer_create(ferry_comm *comm, const ferry_bootstrap *across, const lm_config *config, const lm_text *text,
                      lm_trainer **trainer);
void lm_trainer_destroy(lm_trainer *trainer);

/* Collective. One optimizer step. On a GPU it returns while the step runs. */
int lm_trainer_step(lm_trainer *trainer);
/* Waits for the last step and brings `loss` and `gradient_norm` up to date. Fails, on all ranks or none, when they are
 * not finite. Before the next evaluation. */
int lm_trainer_fetch(lm_trainer *trainer);

/* Held-out windows that an evaluation can use: the largest multiple of the batch that the text has. */
int64_t lm_trainer_windows(const lm_trainer *trainer);
/* Collective. Mean loss in nats per byte over `windows` held-out windows (a multiple of the batch), evenly spread. */
int lm_trainer_evaluate(lm_trainer *trainer, int64_t windows, double *loss);

/* The smallest and largest share of a layer's slots that an expert got since the last call. */
int lm_trainer_take_load(lm_trainer *trainer, double *smallest, double *largest);

/* Collective. Writes `count` bytes (rank 0; others pass what they like, NULL too) that continue `prompt`, drawn at
 * `temperature` > 0 by numbers that depend on the seed and the position alone. */
int lm_sample(lm_model *model, const unsigned char *prompt, int64_t prompt_length, double temperature, int64_t count,
              unsigned char *bytes);

/* ---- Sums over shards, in shard order; collective (exchange.c) ---- */
int lm_exchange_create(lm_trainer *trainer);
void lm_exchange_destroy(lm_trainer *trainer);
/* This rank's sums of shard `shard` (local): loss first, then slots per (layer, expert). */
double *lm_exchange_sums(lm_trainer *trainer, int64_t shard);
/* From one shard's sums to the next one's. */
int64_t lm_exchange_stride(const lm_trainer *trainer);
/* Waits for all ranks' sums and adds them up into trainer->totals. */
int lm_exchange_totals(lm_trainer *trainer);
/* Waits for all ranks' gradients, leaves their sum in dense_gradient and sets `squares`. */
int lm_exchange_gradients(lm_trainer *trainer);

#endif
