/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training steps: forward with a context, backward, and plain gradient descent on F32 master weights. The layer learns
 * to give back what another layer of the same shape and routing gives. Prints the loss as it falls.
 */
#include "ferry/ferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, HIDDEN = 32, INTERMEDIATE = 48, EXPERTS = 4, SLOTS = 2, STEPS = 100 };
enum { MATRIX = INTERMEDIATE * HIDDEN, ALL = EXPERTS * MATRIX };
static const float RATE = 0.5f;

static void check(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", doing, ferry_status_name(status), ferry_last_error());
    exit(1);
}

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

static float noise(float scale) { return scale * (2 * (float)rand() / (float)RAND_MAX - 1); }

/* What the layer multiplies with is BF16; what descends is F32, since small steps would be rounded away in BF16. */
typedef struct parameter {
    float master[ALL], gradient[ALL];
    uint16_t bf16[ALL];
    int rows, columns; /* of one expert's matrix */
} parameter;

static void parameter_init(parameter *p, int rows, int columns) {
    p->rows = rows;
    p->columns = columns;
    for (int i = 0; i < ALL; i++) {
        p->master[i] = noise(0.3f);
        p->bf16[i] = to_bf16(p->master[i]);
    }
}

static void parameter_step(parameter *p) {
    for (int i = 0; i < ALL; i++) {
        p->master[i] -= RATE * p->gradient[i];
        p->bf16[i] = to_bf16(p->master[i]);
    }
}

static ferry_matrices matrices(const parameter *p, const void *base, ferry_dtype dtype) {
    ferry_matrices m = {.base = (void *)base, .expert_stride = MATRIX, .row_stride = p->columns, .dtype = dtype};
    return m;
}

static ferry_weights weights_of(const parameter *gate, const parameter *up, const parameter *down) {
    ferry_weights w;
    memset(&w, 0, sizeof w); /* what is absent, here the shared expert, is all zeros */
    w.gate = matrices(gate, gate->bf16, FERRY_BF16);
    w.up = matrices(up, up->bf16, FERRY_BF16);
    w.down = matrices(down, down->bf16, FERRY_BF16);
    return w;
}

static parameter gate, up, down, teacher_gate, teacher_up, teacher_down;
static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], target[TOKENS * HIDDEN];
static uint16_t dout[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
static int32_t ids[TOKENS * SLOTS];
static float router[TOKENS * SLOTS], drouter[TOKENS * SLOTS];

static void forward(ferry_layer *layer, ferry_weights params, uint16_t *to, ferry_context *context) {
    int32_t tokens = TOKENS;
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &tokens;
    args.x = x;
    args.ids = ids;
    args.ids_dtype = FERRY_I32;
    args.weights = router;
    args.params = params;
    args.out = to;
    args.context = context; /* NULL: no backward will follow */
    check(ferry_forward(layer, &args), "forward");
}

static void backward(ferry_layer *layer, ferry_weights params, ferry_context *context) {
    ferry_backward_args args;
    ferry_backward_args_init(&args);
    args.context = context;
    args.parts = FERRY_BACKWARD_ALL;
    args.dout = dout;
    args.params = params;
    args.dx = dx;            /* for the layer below */
    args.dweights = drouter; /* for the router */
    args.grads.gate.to = matrices(&gate, gate.gradient, FERRY_F32);
    args.grads.up.to = matrices(&up, up.gradient, FERRY_F32);
    args.grads.down.to = matrices(&down, down.gradient, FERRY_F32);
    check(ferry_backward(layer, &args), "backward");
}

/* Half the mean square of what is off; dout is its derivative. */
static float loss_of(void) {
    float loss = 0;
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        float off = from_bf16(out[i]) - from_bf16(target[i]);
        loss += off * off / (2 * TOKENS);
        dout[i] = to_bf16(off / TOKENS);
    }
    return loss;
}

static void make_data(void) {
    parameter_init(&gate, INTERMEDIATE, HIDDEN);
    parameter_init(&up, INTERMEDIATE, HIDDEN);
    parameter_init(&down, HIDDEN, INTERMEDIATE);
    parameter_init(&teacher_gate, INTERMEDIATE, HIDDEN);
    parameter_init(&teacher_up, INTERMEDIATE, HIDDEN);
    parameter_init(&teacher_down, HIDDEN, INTERMEDIATE);
    for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = to_bf16(noise(1));
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = rand() % EXPERTS; /* a token may have the same expert twice */
        router[i] = 0.5f;
    }
}

int main(void) {
    ferry_thread_group *group;
    check(ferry_thread_group_create(1, &group), "making the group");
    ferry_comm_config comm_config;
    ferry_comm_config_init(&comm_config);
    check(ferry_thread_group_bootstrap(group, 0, &comm_config.bootstrap), "joining the group");
    ferry_comm *comm;
    check(ferry_comm_create(&comm_config, &comm), "creating the communicator");

    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = HIDDEN;
    config.intermediate = INTERMEDIATE;
    config.experts = EXPERTS;
    config.slots = SLOTS;
    config.max_tokens = TOKENS;
    ferry_layer *layer;
    check(ferry_layer_create(comm, &config, &layer), "creating the layer");

    /* What a forward leaves for its backward. One is enough here; more may be in flight. */
    ferry_context *context;
    check(ferry_context_create(layer, NULL, &context), "creating the context");

    make_data();
    forward(layer, weights_of(&teacher_gate, &teacher_up, &teacher_down), target, NULL);
    float first = 0, loss = 0;
    for (int step = 0; step < STEPS; step++) {
        ferry_weights params = weights_of(&gate, &up, &down);
        forward(layer, params, out, context);
        loss = loss_of();
        if (step == 0) first = loss;
        if (step % 20 == 0) printf("step %2d  loss %.4f\n", step, (double)loss);
        backward(layer, params, context);
        parameter_step(&gate);
        parameter_step(&up);
        parameter_step(&down);
    }
    printf("step %2d  loss %.4f\n", STEPS - 1, (double)loss);

    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
    return loss < first / 2 ? 0 : 1;
}
