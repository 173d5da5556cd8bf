/* SPDX-License-Identifier: Apache-2.0 */
/* The dense parts of the language model: values against plain loops, gradients against finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lm/adamw.h"
#include "lm/attention.h"
#include "lm/dense.h"
#include "lm/random.h"
#include "lm/router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Unit-scale values that differ between tests. */
static void fill(float *to, int64_t count, uint32_t purpose) {
    for (int64_t i = 0; i < count; i++) to[i] = lm_random_normal(7, purpose, (uint64_t)i);
}

static void poison(float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = NAN;
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

typedef double loss_function(void *user);

/* Relative L2 distance between `gradient` and central differences of `loss` in every one of `count` values. */
static double gradient_error(float *values, const float *gradient, int64_t count, loss_function *loss, void *user) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        float kept = values[i], step = 1.0f / 128;
        values[i] = kept + step;
        double above = loss(user);
        values[i] = kept - step;
        double below = loss(user);
        values[i] = kept;
        double slope = (above - below) / (2.0 * (double)step), off = slope - (double)gradient[i];
        difference += off * off;
        size += slope * slope;
    }
    assert_true(size > 0);
    return sqrt(difference / size);
}

/* ---- Random numbers ---- */

static void test_random_golden(void **state) {
    (void)state;
    /* Known answers of the generator: all zeros, all ones, digits of pi. */
    static const struct {
        lm_words counter;
        uint32_t key0, key1;
        lm_words wanted;
    } known[] = {
        {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         0xa4093822,
         0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        lm_words got = lm_philox(known[i].counter, known[i].key0, known[i].key1);
        assert_memory_equal(&got, &known[i].wanted, sizeof got);
    }
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        double x = (double)lm_random_normal(3, 4, i), u = lm_random_uniform(3, 5, i);
        assert_true(u >= 0 && u < 1);
        assert_true(lm_random_below(3, 6, i, 10) < 10);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / 20000) < 0.03);
    assert_true(fabs(squares / 20000 - 1) < 0.03);
}

/* ---- Norm ---- */

typedef struct norm_case {
    float x[3 * 21], gain[21], dy[3 * 21], y[3 * 21], scale[3];
} norm_case;

static double norm_loss(void *user) {
    norm_case *c = user;
    lm_norm(c->y, c->scale, c->x, c->gain, 3, 21);
    return dot(c->y, c->dy, 3 * 21);
}

static void test_norm(void **state) {
    (void)state;
    norm_case c;
    float dx[3 * 21], dgain[21] = {0};
    fill(c.x, 3 * 21, 10);
    fill(c.gain, 21, 11);
    fill(c.dy, 3 * 21, 12);
    poison(c.y, 3 * 21);
    norm_loss(&c);
    double squares = 0;
    for (int i = 0; i < 21; i++) squares += (double)c.y[i] / (double)c.gain[i] * (double)c.y[i] / (double)c.gain[i];
    assert_true(fabs(squares / 21 - 1) < 1e-3);
    memset(dx, 0, sizeof dx);
    lm_norm_back(dx, dgain, c.dy, c.x, c.scale, c.gain, 3, 21);
    assert_true(gradient_error(c.x, dx, 3 * 21, norm_loss, &c) < 1e-3);
    assert_true(gradient_error(c.gain, dgain, 21, norm_loss, &c) < 1e-3);
}

/* ---- Softmax and cross-entropy ---- */

static void test_softmax(void **state) {
    (void)state;
    float row[40], logits[40];
    for (int64_t n = 1; n <= 40; n++) {
        fill(logits, n, 20);
        logits[n / 2] = n % 3 ? 50.0f : -200.0f; /* far apart: no overflow */
        memcpy(row, logits, sizeof row);
        poison(row + n, 40 - n);
        lm_softmax(row, n, 40);
        double sum = 0, largest = -1000;
        for (int64_t i = 0; i < n; i++) largest = fmax(largest, (double)logits[i]);
        for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - largest);
        for (int64_t i = 0; i < n; i++)
            assert_true(fabs((double)row[i] - exp((double)logits[i] - largest) / sum) < 1e-6);
        for (int64_t i = n; i < 40; i++) assert_true(row[i] == 0);
    }
}

enum { LOSS_ROWS = 3, LOSS_WIDTH = 29 };

typedef struct loss_case {
    float logits[LOSS_ROWS * LOSS_WIDTH];
    unsigned char target[LOSS_ROWS];
} loss_case;

static double cross_entropy_loss(void *user) {
    loss_case *c = user;
    float work[LOSS_ROWS * LOSS_WIDTH];
    memcpy(work, c->logits, sizeof work);
    return lm_cross_entropy(work, c->target, LOSS_ROWS, LOSS_WIDTH, 0);
}

static void test_cross_entropy(void **state) {
    (void)state;
    loss_case c = {.target = {0, 28, 5}};
    fill(c.logits, LOSS_ROWS * LOSS_WIDTH, 21);
    double wanted = 0;
    for (int r = 0; r < LOSS_ROWS; r++) {
        const float *row = c.logits + r * LOSS_WIDTH;
        double sum = 0;
        for (int i = 0; i < LOSS_WIDTH; i++) sum += exp((double)row[i]);
        wanted += log(sum) - (double)row[c.target[r]];
    }
    assert_true(fabs(cross_entropy_loss(&c) - wanted) < 1e-5);
    float gradient[LOSS_ROWS * LOSS_WIDTH];
    memcpy(gradient, c.logits, sizeof gradient);
    lm_cross_entropy(gradient, c.target, LOSS_ROWS, LOSS_WIDTH, 1);
    assert_true(gradient_error(c.logits, gradient, LOSS_ROWS * LOSS_WIDTH, cross_entropy_loss, &c) < 1e-3);
}

/* ---- Attention ---- */

enum { LENGTH = 9, HIDDEN = 24, HEADS = 3 };

typedef struct attention_case {
    lm_attention attention;
    float qkv[LENGTH * 3 * HIDDEN], turned[LENGTH * 3 * HIDDEN], dout[LENGTH * HIDDEN], out[LENGTH * HIDDEN];
    float p[HEADS * LENGTH * LENGTH];
} attention_case;

static double attention_loss(void *user) {
    attention_case *c = user;
    memcpy(c->turned, c->qkv, sizeof c->qkv);
    poison(c->out, LENGTH * HIDDEN);
    lm_attention_forward(&c->attention, c->out, c->p, c->turned);
    return dot(c->out, c->dout, LENGTH * HIDDEN);
}

static void test_attention(void **state) {
    (void)state;
    attention_case c;
    float dqkv[LENGTH * 3 * HIDDEN];
    assert_int_equal(lm_attention_init(&c.attention, LENGTH, HIDDEN, HEADS), 0);
    fill(c.qkv, LENGTH * 3 * HIDDEN, 30);
    fill(c.dout, LENGTH * HIDDEN, 31);
    attention_loss(&c);
    poison(dqkv, LENGTH * 3 * HIDDEN);
    lm_attention_backward(&c.attention, dqkv, c.dout, c.p, c.turned);
    assert_true(gradient_error(c.qkv, dqkv, LENGTH * 3 * HIDDEN, attention_loss, &c) < 1e-3);

    /* Causal: a later token changes nothing before it, not a bit. */
    float before[LENGTH * HIDDEN];
    attention_loss(&c);
    memcpy(before, c.out, sizeof before);
    for (int i = 0; i < 3 * HIDDEN; i++) c.qkv[6 * 3 * HIDDEN + i] += 1;
    attention_loss(&c);
    assert_memory_equal(before, c.out, 6 * HIDDEN * sizeof(float));
    assert_memory_not_equal(before + 6 * HIDDEN, c.out + 6 * HIDDEN, HIDDEN * sizeof(float));
    lm_attention_free(&c.attention);
}

/* The first token attends to itself alone; scores depend on distances, not on places. */
static void test_attention_positions(void **state) {
    (void)state;
    attention_case c;
    assert_int_equal(lm_attention_init(&c.attention, LENGTH, HIDDEN, HEADS), 0);
    fill(c.qkv, 3 * HIDDEN, 32);
    for (int t = 1; t < LENGTH; t++) memcpy(c.qkv + t * 3 * HIDDEN, c.qkv, 3 * HIDDEN * sizeof(float));
    attention_loss(&c);
    for (int i = 0; i < HIDDEN; i++) assert_true(fabsf(c.out[i] - c.qkv[2 * HIDDEN + i]) < 1e-6f);
    for (int head = 0; head < HEADS; head++) {
        const float *p = c.p + head * LENGTH * LENGTH;
        for (int t = 2; t < LENGTH; t++) {
            double here = (double)p[t * LENGTH + t] / (double)p[t * LENGTH + t - 1];
            double first = (double)p[LENGTH + 1] / (double)p[LENGTH];
            assert_true(fabs(here / first - 1) < 1e-4);
        }
    }
    lm_attention_free(&c.attention);
}

/* ---- Router ---- */

enum { TOKENS = 5, EXPERTS = 6, SLOTS = 2 };

typedef struct router_case {
    lm_router router;
    float logits[TOKENS * EXPERTS], p[TOKENS * EXPERTS], weights[TOKENS * SLOTS], dweights[TOKENS * SLOTS];
    float pull[EXPERTS];
    int32_t ids[TOKENS * SLOTS];
} router_case;

static double router_loss(void *user) {
    router_case *c = user;
    memcpy(c->p, c->logits, sizeof c->logits);
    lm_router_choose(&c->router, c->p, c->ids, c->weights, TOKENS);
    double loss = dot(c->weights, c->dweights, TOKENS * SLOTS);
    for (int t = 0; t < TOKENS; t++) loss += dot(c->p + t * EXPERTS, c->pull, EXPERTS);
    return loss;
}

static void test_router_gradient(void **state) {
    (void)state;
    router_case c = {.router = {EXPERTS, SLOTS}};
    float dlogits[TOKENS * EXPERTS];
    /* Far enough apart that no finite difference changes the choice. */
    for (int t = 0; t < TOKENS; t++) {
        for (int e = 0; e < EXPERTS; e++) c.logits[t * EXPERTS + e] = (float)((e * 5 + t * 2) % EXPERTS) * 0.4f;
    }
    fill(c.dweights, TOKENS * SLOTS, 41);
    fill(c.pull, EXPERTS, 42);
    router_loss(&c);
    poison(dlogits, TOKENS * EXPERTS);
    lm_router_back(&c.router, dlogits, c.dweights, c.p, c.ids, c.weights, c.pull, TOKENS);
    assert_true(gradient_error(c.logits, dlogits, TOKENS * EXPERTS, router_loss, &c) < 1e-3);
    memset(c.pull, 0, sizeof c.pull); /* and the choice alone */
    lm_router_back(&c.router, dlogits, c.dweights, c.p, c.ids, c.weights, c.pull, TOKENS);
    assert_true(gradient_error(c.logits, dlogits, TOKENS * EXPERTS, router_loss, &c) < 1e-3);
}

static void test_router_choice(void **state) {
    (void)state;
    lm_router router = {EXPERTS, 3};
    float p[2 * EXPERTS] = {0, 2, 1, 2, 2, -1, 5, 5, 5, 5, 5, 5}, weights[6];
    int32_t ids[6];
    lm_router_choose(&router, p, ids, weights, 2);
    static const int32_t wanted[] = {1, 3, 4, 0, 1, 2};
    assert_memory_equal(ids, wanted, sizeof wanted);
    for (int i = 0; i < 6; i++) assert_true(fabsf(weights[i] - 1.0f / 3) < 1e-6f);
    router.slots = 2;
    float q[EXPERTS] = {0, 3, 0, 0, 2, 0};
    lm_router_choose(&router, q, ids, weights, 1);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 4);
    assert_true(fabs((double)weights[0] - 1 / (1 + exp(-1))) < 1e-6);
    assert_true(fabs((double)weights[0] + (double)weights[1] - 1) < 1e-6);
}

/* ---- Conversions, sums ---- */

static void test_conversions(void **state) {
    (void)state;
    static const float from[] = {1.0f, 1.00390625f, 1.01171875f, -0.0f, 3.3895314e38f, 1e-40f};
    static const uint16_t wanted[] = {0x3f80, 0x3f80, 0x3f82, 0x8000, 0x7f7f, 0x0001};
    uint16_t to[6];
    float back[6], half[6] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    lm_round(to, from, 6);
    assert_memory_equal(to, wanted, sizeof wanted);
    lm_add_bf16(back, half, to, 3);
    assert_true(back[0] == 1.5f && back[2] == 1.515625f);
    float many[19];
    fill(many, 19, 50);
    assert_true(fabs(lm_square_sum(many, 19) - dot(many, many, 19)) < 1e-12);
}

/* ---- Optimizer ---- */

static void test_adamw(void **state) {
    (void)state;
    lm_config c = lm_config_default();
    float value[2] = {1.0f, -2.0f}, m[2] = {0}, v[2] = {0};
    double wanted[2] = {1, -2}, wm[2] = {0}, wv[2] = {0};
    for (int64_t step = 0; step < 5; step++) {
        float gradient[2] = {0.3f + 0.1f * (float)step, -4.0f};
        double rate = lm_learning_rate(&c, step);
        for (int i = 0; i < 2; i++) {
            double g = 0.5 * (double)gradient[i];
            wm[i] = c.beta1 * wm[i] + (1 - c.beta1) * g;
            wv[i] = c.beta2 * wv[i] + (1 - c.beta2) * g * g;
            double m_hat = wm[i] / (1 - pow(c.beta1, (double)step + 1)),
                   v_hat = wv[i] / (1 - pow(c.beta2, (double)step + 1));
            wanted[i] -= rate * (m_hat / (sqrt(v_hat) + 1e-8) + c.weight_decay * wanted[i]);
        }
        lm_adamw(&c, step, value, m, v, gradient, 2, 0.5, 1);
    }
    for (int i = 0; i < 2; i++) assert_true(fabs((double)value[i] - wanted[i]) < 1e-6);
    assert_true(fabs((double)m[1] - wm[1]) < 1e-6);
}

static void test_learning_rate(void **state) {
    (void)state;
    lm_config c = lm_config_default();
    c.warmup_steps = 10;
    c.decay_steps = 110;
    assert_true(fabs(lm_learning_rate(&c, 0) - c.learning_rate / 10) < 1e-12);
    assert_true(fabs(lm_learning_rate(&c, 10) - c.learning_rate) < 1e-12);
    assert_true(fabs(lm_learning_rate(&c, 60) - (c.learning_rate + c.floor) / 2) < 1e-12);
    assert_true(lm_learning_rate(&c, 110) == c.floor && lm_learning_rate(&c, 100000) == c.floor);
    c.decay_steps = 5; /* shorter than the warm-up */
    assert_true(lm_learning_rate(&c, 20) == c.floor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_golden),   cmocka_unit_test(test_norm),
        cmocka_unit_test(test_softmax),         cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_attention),       cmocka_unit_test(test_attention_positions),
        cmocka_unit_test(test_router_gradient), cmocka_unit_test(test_router_choice),
        cmocka_unit_test(test_conversions),     cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_learning_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
