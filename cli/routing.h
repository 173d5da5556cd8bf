/* SPDX-License-Identifier: Apache-2.0 */
/* Expert ids and router weights of tokens: drawn, read from a file, written to one. */
#ifndef FERRY_CLI_ROUTING_H
#define FERRY_CLI_ROUTING_H

#include "cli/shapes.h"

#include <stdint.h>

/* Tokens of all ranks, in rank order. */
typedef struct routing {
    int64_t tokens, slots;
    int32_t *ids;   /* [tokens, slots]; -1: no expert */
    float *weights; /* [tokens, slots] */
} routing;

/*
 * The `slots` largest of softmax(logits) of each token, largest first, divided by their sum. A logit is a standard
 * normal number of (token, expert) plus skew times one of the expert. Numbers are keyed by what they belong to, so a
 * token's ids do not depend on how many tokens there are or which rank has it. 0, or the exit code after a message.
 */
int routing_draw(routing *r, int64_t tokens, int64_t experts, int64_t slots, double skew, uint64_t seed);

/* The tensors ids I32 or I64 [N,K] and weights F32 [N,K] of a safetensors file; ids must be -1 .. experts - 1. */
int routing_read(routing *r, const char *path, int64_t experts);
/* The same for a layer of `shape`, which must have as many slots as the file; `name` is what --shape calls it. */
int routing_read_for(routing *r, const char *path, const char *name, const layer_shape *shape);
int routing_write(const routing *r, const char *path);
void routing_free(routing *r);

#endif
