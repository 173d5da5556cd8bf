/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forward and a backward right after it will count, from the ids alone: the numbers of ferry_layer_stats,
 * exactly, and the bytes that cross between every two ranks, with and without pulling a token once per macrobatch.
 */
#ifndef FERRY_CLI_PLAN_COUNT_H
#define FERRY_CLI_PLAN_COUNT_H

#include "ferry/ferry.h"

typedef struct plan_input {
    const ferry_layer_config *config;
    int nranks, comm_workers, compute_workers;
    const int64_t *first_token; /* [nranks + 1] */
    const void *ids;            /* [all tokens, K] */
    ferry_dtype ids_dtype;
    int has_backward;
    ferry_backend backend; /* whose plans */
} plan_input;

/* Rows that one rank's experts receive from one rank's tokens. */
typedef struct plan_pair {
    int64_t rows;
    int64_t leaders;         /* rows that are pulled: one per token and macrobatch */
    int64_t missing;         /* rows whose x, g and u a backward has to make again */
    int64_t missing_leaders; /* those of them whose x is pulled again */
} plan_pair;

/* Bytes in one direction. "each": every row is pulled, without fan-out. */
typedef struct plan_bytes {
    int64_t fanned, each;
} plan_bytes;

typedef struct plan_rank {
    ferry_plan plan;
    int64_t tokens;
    ferry_stats forward, backward;
    plan_bytes forward_in, forward_out, backward_in, backward_out; /* from and to all other ranks */
} plan_rank;

typedef struct plan_counts {
    int nranks;
    plan_rank *rank; /* [nranks] */
    plan_pair *pair; /* [nranks that hold experts][nranks that own tokens] */
    int64_t hidden;
} plan_counts;

/* On failure there is nothing to free, and ferry_last_error() has the sentence. */
ferry_status plan_count(const plan_input *input, plan_counts *counts);
void plan_counts_free(plan_counts *counts);

/* Bytes that cross from rank `from` to rank `to`: pulled by `to` and pushed by `from`. */
plan_bytes plan_link(const plan_counts *counts, int from, int to, int backward);

#endif
