/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of every sum that docs/design.md fixes. The terms are B, -B and small ones, with B so large that a small
 * term added to it is lost: (B - B) + 1 is 1, every other order gives another number. So the order shows in one run, on
 * values that can be named, without comparing ways to run it (which would all have the same wrong order).
 */
#include "ferry/ferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

enum { MOST_WIDTH = 520, MOST_TOKENS = 3, MOST_SLOTS = 3 };

static const float BIG = 0x1p40f;

/* One rank, one expert; H = 1 unless set. Everything that is not set is 0. */
typedef struct setting {
    int64_t hidden, intermediate, shared, slots;
    int32_t tokens;
    float x[MOST_TOKENS * 3], weights[MOST_TOKENS * MOST_SLOTS];
    float gate[MOST_WIDTH], up[MOST_WIDTH], down[MOST_WIDTH];
    float shared_gate[1], shared_up[1], shared_down[1];
} setting;

typedef struct outcome {
    float out[MOST_TOKENS * 3], dx[MOST_TOKENS * 3], dweights[MOST_TOKENS * MOST_SLOTS];
    float dgate[MOST_WIDTH], ddown[MOST_WIDTH];
} outcome;

static void narrow(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        assert_int_equal(bits & 0xffff, 0); /* what a test says is what the layer gets */
        to[i] = (uint16_t)(bits >> 16);
    }
}

static void widen(float *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

static ferry_matrices matrices(void *base, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){.base = base, .row_stride = columns, .dtype = dtype};
}

/* Forward, and backward from an output gradient of ones. */
static void run(const setting *s, outcome *to) {
    static uint16_t x[MOST_TOKENS * 3], out[MOST_TOKENS * 3], dx[MOST_TOKENS * 3], dout[MOST_TOKENS * 3];
    static uint16_t gate[MOST_WIDTH], up[MOST_WIDTH], down[MOST_WIDTH], shared[3];
    int32_t ids[MOST_TOKENS * MOST_SLOTS] = {0};
    int64_t h = s->hidden, i = s->intermediate, values = s->tokens * h;
    const float ones[MOST_TOKENS * 3] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    narrow(x, s->x, values);
    narrow(dout, ones, values);
    narrow(gate, s->gate, i * h);
    narrow(up, s->up, i * h);
    narrow(down, s->down, i * h);
    narrow(&shared[0], s->shared_gate, 1);
    narrow(&shared[1], s->shared_up, 1);
    narrow(&shared[2], s->shared_down, 1);

    ferry_thread_group *group;
    ferry_comm_config comm_config;
    ferry_layer_config config;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_comm_config_init(&comm_config);
    ferry_layer_config_init(&config);
    config.hidden = h;
    config.intermediate = i;
    config.shared = s->shared;
    config.experts = 1;
    config.slots = s->slots;
    config.max_tokens = s->tokens;
    assert_int_equal(ferry_thread_group_create(1, &group), FERRY_OK);
    assert_int_equal(ferry_thread_group_bootstrap(group, 0, &comm_config.bootstrap), FERRY_OK);
    assert_int_equal(ferry_comm_create(&comm_config, &comm), FERRY_OK);
    assert_int_equal(ferry_layer_create(comm, &config, &layer), FERRY_OK);
    assert_int_equal(ferry_context_create(layer, NULL, &context), FERRY_OK);

    ferry_forward_args forward;
    ferry_backward_args backward;
    ferry_forward_args_init(&forward);
    ferry_backward_args_init(&backward);
    forward.num_tokens = &s->tokens;
    forward.x = x;
    forward.ids = ids;
    forward.ids_dtype = FERRY_I32;
    forward.weights = s->weights;
    forward.params = (ferry_weights){.gate = matrices(gate, h, FERRY_BF16),
                                     .up = matrices(up, h, FERRY_BF16),
                                     .down = matrices(down, i, FERRY_BF16),
                                     .shared_gate = matrices(&shared[0], 1, FERRY_BF16),
                                     .shared_up = matrices(&shared[1], 1, FERRY_BF16),
                                     .shared_down = matrices(&shared[2], 1, FERRY_BF16)};
    forward.out = out;
    forward.context = backward.context = context;
    backward.dout = dout;
    backward.params = forward.params;
    backward.dx = dx;
    backward.dweights = to->dweights;
    backward.grads.gate.to = matrices(to->dgate, h, FERRY_F32);
    backward.grads.down.to = matrices(to->ddown, i, FERRY_F32);
    memset(to, 0xff, sizeof *to);
    assert_int_equal(ferry_forward(layer, &forward), FERRY_OK);
    assert_int_equal(ferry_backward(layer, &backward), FERRY_OK);
    widen(to->out, out, values);
    widen(to->dx, dx, values);

    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
}

static void near(float value, double expected) {
    if (!(fabs((double)value - expected) <= 0.01 * fabs(expected))) {
        fail_msg("%.9g, expected %.9g", (double)value, expected);
    }
}

static const double silu1 = 0.7310585786300049; /* of 1 */

/* The shared expert's row first (and so lost), then slots ascending. */
static void test_slots(void **state) {
    static outcome o;
    setting s = {.hidden = 1,
                 .intermediate = 1,
                 .shared = 1,
                 .slots = 3,
                 .tokens = 1,
                 .x = {1},
                 .weights = {BIG, -BIG, 1},
                 .gate = {1},
                 .up = {1},
                 .down = {1},
                 .shared_gate = {1},
                 .shared_up = {1},
                 .shared_down = {4}};
    (void)state;
    run(&s, &o);
    near(o.out[0], silu1);
    /* dg = silu'(1), du = silu(1), both times w. */
    near(o.dx[0], silu1 * (1 + (1 - silu1)) + silu1);
}

/* Rows of an expert in canonical order: here by token. */
static void test_rows(void **state) {
    static outcome o;
    setting s = {.hidden = 1,
                 .intermediate = 1,
                 .slots = 1,
                 .tokens = 3,
                 .x = {1, 1, 1},
                 .weights = {BIG, -BIG, 1},
                 .gate = {1},
                 .up = {1},
                 .down = {1}};
    (void)state;
    run(&s, &o);
    near(o.ddown[0], silu1);
    near(o.dgate[0], silu1 * (1 + (1 - silu1)));
}

/* The K dimension of a product: H of gate, I of down. */
static void test_depth(void **state) {
    static outcome o;
    setting wide = {.hidden = 3,
                    .intermediate = 1,
                    .slots = 1,
                    .tokens = 1,
                    .x = {1, 1, 1},
                    .weights = {1},
                    .gate = {BIG, -BIG, 1},
                    .up = {0, 0, 1},
                    .down = {1, 1, 1}};
    setting deep = {.hidden = 1,
                    .intermediate = 3,
                    .slots = 1,
                    .tokens = 1,
                    .x = {1},
                    .weights = {1},
                    .gate = {1, 1, 1},
                    .up = {1, 1, 1},
                    .down = {BIG, -BIG, 1}};
    (void)state;
    run(&wide, &o);
    near(o.out[0], silu1);
    run(&deep, &o);
    near(o.out[0], silu1);
}

/* dweights: column tiles of I ascending. Column 0 is in the first one, the last column in the last one. */
static void test_dweight_tiles(void **state) {
    static outcome o;
    setting s = {.hidden = 1, .intermediate = MOST_WIDTH, .slots = 1, .tokens = 1, .x = {1}, .weights = {1}};
    const int column[3] = {0, MOST_WIDTH / 2, MOST_WIDTH - 1};
    const float down[3] = {BIG, -BIG, 1};
    (void)state;
    for (int i = 0; i < 3; i++) {
        s.gate[column[i]] = s.up[column[i]] = 1;
        s.down[column[i]] = down[i];
    }
    run(&s, &o);
    near(o.dweights[0], silu1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_dweight_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
