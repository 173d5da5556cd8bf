/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest use of Ferry: one rank, one layer, one forward, in some 40 lines of code. Prints a token's output. */
#include "ferry/ferry.h"
#include <stdio.h>

enum { TOKENS = 4, HIDDEN = 16, INTERMEDIATE = 32, EXPERTS = 4, SLOTS = 2, MATRIX = INTERMEDIATE * HIDDEN };
static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN]; /* BF16, the upper half of a float: 0x3f80 is 1.0 */
static uint16_t gate[EXPERTS * MATRIX], up[EXPERTS * MATRIX], down[EXPERTS * MATRIX];
/* Routing is an input: which experts a token goes to, and with which weights their results are added. */
static int32_t tokens = TOKENS, ids[TOKENS * SLOTS] = {0, 1, 1, 2, 2, 3, 3, 0};
static float weights[TOKENS * SLOTS] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};

/* Matrices of all experts behind each other. */
static ferry_matrices matrices(void *base, int columns) {
    return (ferry_matrices){.base = base, .expert_stride = MATRIX, .row_stride = columns, .dtype = FERRY_BF16};
}

int main(void) {
    for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = 0x3f80;
    for (int i = 0; i < EXPERTS * MATRIX; i++) gate[i] = up[i] = down[i] = (uint16_t)(0x3d00 + i % 251);

    ferry_thread_group *group; /* of one rank */
    ferry_comm_config comm_config;
    ferry_comm *comm;
    ferry_comm_config_init(&comm_config);
    ferry_layer_config config;
    ferry_layer *layer; /* buffers for calls of up to max_tokens tokens; weights and tokens come with each call */
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = TOKENS;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x;
    args.ids = ids;
    args.ids_dtype = FERRY_I32;
    args.weights = weights;
    ferry_weights params = {
        .gate = matrices(gate, HIDDEN), .up = matrices(up, HIDDEN), .down = matrices(down, INTERMEDIATE)};
    args.params = params;
    args.out = out;
    if (ferry_thread_group_create(1, &group) || ferry_thread_group_bootstrap(group, 0, &comm_config.bootstrap) ||
        ferry_comm_create(&comm_config, &comm) || ferry_layer_create(comm, &config, &layer) ||
        ferry_forward(layer, &args)) {
        fprintf(stderr, "%s\n", ferry_last_error()); /* what, where, expected, got, what to do */
        return 1;
    }
    for (int h = 0; h < HIDDEN; h++) printf("%s %04x", h ? "" : "token 0:", out[h]);
    printf("\n");
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
    return 0;
}
