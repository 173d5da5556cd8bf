/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest use of Ferry: one rank, one layer, one forward. Prints a token's output. */
#include "ferry/ferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 8, HIDDEN = 16, INTERMEDIATE = 32, EXPERTS = 4, SLOTS = 2 };

/* Every call that can fail returns a status; the sentence about what went wrong is in ferry_last_error(). */
static void check(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, ferry_status_name(status), ferry_last_error());
    exit(1);
}

/* A BF16 number is the upper half of a float, here rounded to the nearest. */
static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static void fill(uint16_t *to, int count) {
    for (int i = 0; i < count; i++) to[i] = to_bf16((float)rand() / (float)RAND_MAX - 0.5f);
}

/* Matrices of all experts behind each other: expert e begins at base + e * rows * columns. */
static ferry_matrices matrices(void *base, int rows, int columns) {
    ferry_matrices m = {.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = FERRY_BF16};
    return m;
}

int main(void) {
    static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    static uint16_t gate[EXPERTS * INTERMEDIATE * HIDDEN], up[EXPERTS * INTERMEDIATE * HIDDEN];
    static uint16_t down[EXPERTS * HIDDEN * INTERMEDIATE];
    static int32_t ids[TOKENS * SLOTS];
    static float weights[TOKENS * SLOTS];
    fill(x, TOKENS * HIDDEN);
    fill(gate, EXPERTS * INTERMEDIATE * HIDDEN);
    fill(up, EXPERTS * INTERMEDIATE * HIDDEN);
    fill(down, EXPERTS * HIDDEN * INTERMEDIATE);

    /* Routing is an input: which experts a token goes to, and with which weights their results are added. */
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = i % EXPERTS;
        weights[i] = 0.5f;
    }

    /* A communicator of one rank: a group of threads of which there is only this one. */
    ferry_thread_group *group;
    check(ferry_thread_group_create(1, &group), "making the group");
    ferry_comm_config comm_config;
    ferry_comm_config_init(&comm_config);
    check(ferry_thread_group_bootstrap(group, 0, &comm_config.bootstrap), "joining the group");
    ferry_comm *comm;
    check(ferry_comm_create(&comm_config, &comm), "creating the communicator");

    /* A layer holds the buffers for calls of up to max_tokens tokens; weights and tokens come with each call. */
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = TOKENS;
    ferry_layer *layer;
    check(ferry_layer_create(comm, &config, &layer), "creating the layer");

    int32_t tokens = TOKENS;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x;
    args.ids = ids;
    args.ids_dtype = FERRY_I32;
    args.weights = weights;
    args.params.gate = matrices(gate, INTERMEDIATE, HIDDEN);
    args.params.up = matrices(up, INTERMEDIATE, HIDDEN);
    args.params.down = matrices(down, HIDDEN, INTERMEDIATE);
    args.out = out;
    check(ferry_forward(layer, &args), "forward");

    printf("token 0:");
    for (int h = 0; h < HIDDEN; h++) printf(" %.4f", (double)from_bf16(out[h]));
    printf("\n");

    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
    return 0;
}
