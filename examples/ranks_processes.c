/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job of processes on one machine. Start one process per rank, with the variables that torchrun sets:
 *
 *     for rank in 0 1 2 3; do RANK=$rank WORLD_SIZE=4 FERRY_JOB=demo ./ranks_processes & done; wait
 *
 * Every rank leaves its outputs in symmetric memory; rank 0 reads them from there and prints a checksum, which is the
 * same for every WORLD_SIZE.
 */
#include "ferry/ferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 60, HIDDEN = 32, INTERMEDIATE = 48, EXPERTS = 8, SLOTS = 3 }; /* TOKENS of all ranks */
enum { MATRIX = INTERMEDIATE * HIDDEN };

static void check(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, ferry_status_name(status), ferry_last_error());
    exit(1);
}

/* Every process draws the same numbers, and uses its part of them. */
static uint16_t x[TOKENS * HIDDEN];
static uint16_t gate[EXPERTS * MATRIX], up[EXPERTS * MATRIX], down[EXPERTS * MATRIX];
static int32_t ids[TOKENS * SLOTS];
static float weights[TOKENS * SLOTS];

static void fill(uint16_t *to, int count) {
    for (int i = 0; i < count; i++) {
        float value = (float)rand() / (float)RAND_MAX - 0.5f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

static void make_data(void) {
    srand(1);
    fill(x, TOKENS * HIDDEN);
    fill(gate, EXPERTS * MATRIX);
    fill(up, EXPERTS * MATRIX);
    fill(down, EXPERTS * MATRIX);
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = rand() % EXPERTS;
        weights[i] = (float)(1 + rand() % 4) / 8;
    }
}

static ferry_matrices from_expert(uint16_t *all, int64_t first, int columns) {
    ferry_matrices m = {
        .base = all + first * MATRIX, .expert_stride = MATRIX, .row_stride = columns, .dtype = FERRY_BF16};
    return m;
}

static void forward(ferry_layer *layer, int rank, int32_t tokens, uint16_t *out) {
    int first_token = rank * tokens;
    /* A rank may have no experts, when there are more ranks than experts; then nothing of the weights is read. */
    int64_t first_expert = ferry_layer_local_experts(layer, rank) > 0 ? ferry_layer_expert_id(layer, rank, 0) : 0;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x + first_token * HIDDEN;
    args.ids = ids + first_token * SLOTS;
    args.ids_dtype = FERRY_I32;
    args.weights = weights + first_token * SLOTS;
    args.params.gate = from_expert(gate, first_expert, HIDDEN);
    args.params.up = from_expert(up, first_expert, HIDDEN);
    args.params.down = from_expert(down, first_expert, INTERMEDIATE);
    args.out = out;
    check(ferry_forward(layer, &args), "forward");
}

/* The outputs of all ranks in rank order, as one number. */
static uint64_t checksum(ferry_comm *comm, const uint16_t *out, int32_t tokens) {
    uint64_t sum = 14695981039346656037u;
    for (int rank = 0; rank < ferry_comm_size(comm); rank++) {
        void *peer;
        check(ferry_sym_peer(comm, out, rank, &peer), "finding a peer's memory");
        const uint16_t *values = peer;
        for (int i = 0; i < tokens * HIDDEN; i++) sum = (sum ^ values[i]) * 1099511628211u;
    }
    return sum;
}

int main(void) {
    ferry_env_bootstrap *env;
    ferry_comm_config comm_config;
    ferry_comm_config_init(&comm_config);
    comm_config.compute_workers = 1;
    check(ferry_env_bootstrap_create(60, &env, &comm_config.bootstrap), "meeting the other ranks");
    ferry_comm *comm;
    check(ferry_comm_create(&comm_config, &comm), "creating the communicator");
    int rank = ferry_comm_rank(comm), nranks = ferry_comm_size(comm);
    if (TOKENS % nranks != 0) {
        fprintf(stderr, "%d tokens cannot be split evenly over %d ranks\n", TOKENS, nranks);
        return 1;
    }

    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = TOKENS / nranks;
    ferry_layer *layer;
    check(ferry_layer_create(comm, &config, &layer), "creating the layer");

    /* Memory that every rank can reach, of the same size on all of them. */
    void *out;
    check(ferry_sym_alloc(comm, (size_t)(TOKENS / nranks) * HIDDEN * sizeof(uint16_t), &out), "symmetric memory");
    make_data();
    forward(layer, rank, TOKENS / nranks, out);

    /* A forward returns when this rank's outputs are there; the barrier, when those of all ranks are. The second one
     * keeps the memory alive until rank 0 has read it. */
    check(ferry_barrier(comm), "barrier");
    if (rank == 0) printf("checksum %016llx\n", (unsigned long long)checksum(comm, out, TOKENS / nranks));
    check(ferry_barrier(comm), "barrier");

    ferry_sym_free(comm, out);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_env_bootstrap_destroy(env);
    return 0;
}
