/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four ranks as threads of one process, each with a quarter of the tokens and of the experts. The same batch on one
 * rank gives the same bits, and this program says whether it did.
 */
#include "ferry/ferry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TOKENS = 64, HIDDEN = 32, INTERMEDIATE = 48, EXPERTS = 8, SLOTS = 3 }; /* TOKENS of all ranks */
enum { MATRIX = INTERMEDIATE * HIDDEN };

static void check(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, ferry_status_name(status), ferry_last_error());
    exit(1);
}

/* The global batch and all experts. Real ranks would each have their own part only. */
static uint16_t x[TOKENS * HIDDEN];
static uint16_t gate[EXPERTS * MATRIX], up[EXPERTS * MATRIX], down[EXPERTS * MATRIX];
static int32_t ids[TOKENS * SLOTS];
static float weights[TOKENS * SLOTS];

typedef struct rank_job {
    ferry_thread_group *group;
    int rank, nranks;
    uint16_t *out; /* [TOKENS, HIDDEN] of all ranks */
} rank_job;

static ferry_matrices from_expert(uint16_t *all, int64_t first, int columns) {
    ferry_matrices m = {
        .base = all + first * MATRIX, .expert_stride = MATRIX, .row_stride = columns, .dtype = FERRY_BF16};
    return m;
}

static void forward(const rank_job *job, ferry_layer *layer) {
    int32_t tokens = TOKENS / job->nranks;
    int first_token = job->rank * tokens;
    /* Experts are spread in contiguous blocks; a rank passes the weights of its own ones, in the order of their ids. */
    int64_t first_expert = ferry_layer_expert_id(layer, job->rank, 0);
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x + first_token * HIDDEN;
    args.ids = ids + first_token * SLOTS; /* ids are global: a token may go to experts of any rank */
    args.ids_dtype = FERRY_I32;
    args.weights = weights + first_token * SLOTS;
    args.params.gate = from_expert(gate, first_expert, HIDDEN);
    args.params.up = from_expert(up, first_expert, HIDDEN);
    args.params.down = from_expert(down, first_expert, INTERMEDIATE);
    args.out = job->out + first_token * HIDDEN;
    check(ferry_forward(layer, &args), "forward");
}

/* What each rank does. Creating and forward are collective: every rank of the communicator calls them. */
static void *rank_main(void *argument) {
    const rank_job *job = argument;
    ferry_comm_config comm_config;
    ferry_comm_config_init(&comm_config);
    comm_config.compute_workers = 1;
    check(ferry_thread_group_bootstrap(job->group, job->rank, &comm_config.bootstrap), "joining the group");
    ferry_comm *comm;
    check(ferry_comm_create(&comm_config, &comm), "creating the communicator");

    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS; /* over all ranks */
    config.slots = SLOTS;
    config.max_tokens = TOKENS / job->nranks; /* of each rank */
    ferry_layer *layer;
    check(ferry_layer_create(comm, &config, &layer), "creating the layer");

    forward(job, layer);

    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    return NULL;
}

static void run(int nranks, uint16_t *out) {
    pthread_t threads[RANKS];
    rank_job jobs[RANKS];
    ferry_thread_group *group;
    check(ferry_thread_group_create(nranks, &group), "making the group");
    for (int r = 0; r < nranks; r++) {
        rank_job job = {group, r, nranks, out};
        jobs[r] = job;
        if (pthread_create(&threads[r], NULL, rank_main, &jobs[r]) != 0) exit(1);
    }
    for (int r = 0; r < nranks; r++) pthread_join(threads[r], NULL);
    ferry_thread_group_destroy(group);
}

/* A BF16 number is the upper half of a float; cutting off the lower one is good enough for random values. */
static void fill(uint16_t *to, int count) {
    for (int i = 0; i < count; i++) {
        float value = (float)rand() / (float)RAND_MAX - 0.5f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

int main(void) {
    static uint16_t four[TOKENS * HIDDEN], one[TOKENS * HIDDEN];
    fill(x, TOKENS * HIDDEN);
    fill(gate, EXPERTS * MATRIX);
    fill(up, EXPERTS * MATRIX);
    fill(down, EXPERTS * MATRIX);
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = rand() % EXPERTS;
        weights[i] = (float)(1 + rand() % 4) / 8;
    }
    memset(one, 0xff, sizeof one); /* NaN: what nobody wrote would show */
    run(RANKS, four);
    run(1, one);
    int same = memcmp(four, one, sizeof one) == 0;
    printf("%d ranks and 1 rank: %s\n", RANKS, same ? "the same bits" : "different bits");
    return same ? 0 : 1;
}
