/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that MPI started. Ferry needs an all-gather to begin with, and MPI has one:
 *
 *     mpicc -std=c99 -Iinclude -o mpi examples/mpi.c -Lbuild -lferry && mpirun -n 4 ./mpi
 *
 * The ranks of a layer share one machine; with several machines each has a layer of its own, over the same experts.
 * Rank 0 of each machine prints a checksum of its ranks' outputs, which is the same with 1, 2, 4 or 8 of them.
 */
#include "ferry/ferry.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HIDDEN = 32, INTERMEDIATE = 48, EXPERTS = 8, SLOTS = 2 }; /* TOKENS of all ranks */
enum { MATRIX = INTERMEDIATE * HIDDEN };

static void check(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, ferry_status_name(status), ferry_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The whole bootstrap. */
static int allgather(void *user, const void *mine, void *all, size_t bytes) {
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)user) != MPI_SUCCESS;
}

/* Every process draws the same numbers, and uses its part of them. A BF16 number is the upper half of a float: these
 * are between 0.5 and 1 or between -1 and -0.5. */
static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], outs[TOKENS * HIDDEN];
static uint16_t gate[EXPERTS * MATRIX], up[EXPERTS * MATRIX], down[EXPERTS * MATRIX];
static int32_t ids[TOKENS * SLOTS];
static float weights[TOKENS * SLOTS];

static void fill(uint16_t *to, int count) {
    for (int i = 0; i < count; i++) to[i] = (uint16_t)(0x3f00 | (rand() & 0x807f));
}

static ferry_matrices from_expert(uint16_t *all, int64_t first, int columns) {
    ferry_matrices m = {
        .base = all + first * MATRIX, .expert_stride = MATRIX, .row_stride = columns, .dtype = FERRY_BF16};
    return m;
}

int main(int argc, char **argv) {
    MPI_Comm machine;
    ferry_comm_config comm_config;
    ferry_comm *comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    ferry_comm_config_init(&comm_config);
    comm_config.bootstrap.allgather = allgather;
    comm_config.bootstrap.user = &machine;
    MPI_Comm_rank(machine, &comm_config.bootstrap.rank);
    MPI_Comm_size(machine, &comm_config.bootstrap.nranks);
    comm_config.compute_workers = 1;
    check(ferry_comm_create(&comm_config, &comm), "creating the communicator");
    int rank = ferry_comm_rank(comm), nranks = ferry_comm_size(comm);
    int32_t tokens = TOKENS / nranks;

    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = tokens;
    ferry_layer *layer;
    check(ferry_layer_create(comm, &config, &layer), "creating the layer");

    fill(x, TOKENS * HIDDEN);
    fill(gate, EXPERTS * MATRIX);
    fill(up, EXPERTS * MATRIX);
    fill(down, EXPERTS * MATRIX);
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = rand() % EXPERTS;
        weights[i] = 0.5f;
    }

    int64_t first = ferry_layer_local_experts(layer, rank) > 0 ? ferry_layer_expert_id(layer, rank, 0) : 0;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x + rank * tokens * HIDDEN;
    args.ids = ids + rank * tokens * SLOTS;
    args.ids_dtype = FERRY_I32;
    args.weights = weights + rank * tokens * SLOTS;
    args.params.gate = from_expert(gate, first, HIDDEN);
    args.params.up = from_expert(up, first, HIDDEN);
    args.params.down = from_expert(down, first, INTERMEDIATE);
    args.out = out;
    check(ferry_forward(layer, &args), "forward");

    uint64_t sum = 14695981039346656037u;
    MPI_Gather(out, tokens * HIDDEN, MPI_UINT16_T, outs, tokens * HIDDEN, MPI_UINT16_T, 0, machine);
    for (int i = 0; i < tokens * nranks * HIDDEN; i++) sum = (sum ^ outs[i]) * 1099511628211u;
    if (rank == 0) printf("checksum %016llx\n", (unsigned long long)sum);

    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    MPI_Comm_free(&machine);
    MPI_Finalize();
    return 0;
}
