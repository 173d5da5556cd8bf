/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle against mathematics: finite differences of the exact mode, values worked out by hand, the two modes
 * against each other, and files that a second implementation (tools/make_golden.py) wrote.
 */
#include "ref/ref_parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Everything that has a gradient, in one order for values and gradients. */
enum { X, WEIGHTS, GATE, UP, DOWN, SHARED_GATE, SHARED_UP, SHARED_DOWN, TENSORS };
static const char *const tensor_name[TENSORS] = {
    "x", "weights", "gate", "up", "down", "shared_gate", "shared_up", "shared_down",
};

typedef struct batch {
    int64_t tokens, hidden, intermediate, shared, experts, slots;
    double limit;
    int64_t n[TENSORS];
    double *value[TENSORS], *gradient[TENSORS];
    double *dout, *out;
    int64_t *ids;
} batch;

static uint64_t random_state;

static double uniform(void) { /* -1 .. 1 */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(random_state >> 11) * 0x1p-52 - 1;
}

static double *array(int64_t n) { /* poisoned: what the oracle does not write shows */
    double *values = test_malloc((size_t)n * sizeof(double) + 1);
    for (int64_t i = 0; i < n; i++) values[i] = NAN;
    return values;
}

static void batch_alloc(batch *b) {
    const int64_t n[TENSORS] = {
        [X] = b->tokens * b->hidden,
        [WEIGHTS] = b->tokens * b->slots,
        [GATE] = b->experts * b->intermediate * b->hidden,
        [UP] = b->experts * b->intermediate * b->hidden,
        [DOWN] = b->experts * b->hidden * b->intermediate,
        [SHARED_GATE] = b->shared * b->hidden,
        [SHARED_UP] = b->shared * b->hidden,
        [SHARED_DOWN] = b->hidden * b->shared,
    };
    for (int i = 0; i < TENSORS; i++) {
        b->n[i] = n[i];
        b->value[i] = array(n[i]);
        b->gradient[i] = array(n[i]);
    }
    b->dout = array(n[X]);
    b->out = array(n[X]);
    b->ids = test_malloc((size_t)n[WEIGHTS] * sizeof(int64_t) + 1);
}

static void batch_free(batch *b) {
    for (int i = 0; i < TENSORS; i++) {
        test_free(b->value[i]);
        test_free(b->gradient[i]);
    }
    test_free(b->dout);
    test_free(b->out);
    test_free(b->ids);
}

/* Unit scale throughout, BF16 values; ids from -1 (no expert) to experts (out of range, no expert either). */
static void batch_fill(batch *b, uint64_t seed) {
    random_state = seed;
    const int64_t depth[TENSORS] = {
        1, 1, b->hidden, b->hidden, b->intermediate, b->hidden, b->hidden, b->shared,
    };
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < b->n[t]; i++) {
            b->value[t][i] = fy_ref_bf16(uniform() * sqrt(3 / (double)depth[t]));
        }
    }
    for (int64_t i = 0; i < b->n[X]; i++) b->dout[i] = fy_ref_bf16(uniform() * sqrt(3));
    for (int64_t i = 0; i < b->n[WEIGHTS]; i++) {
        b->ids[i] = (int64_t)((uniform() + 1) / 2 * (double)(b->experts + 2)) - 1;
    }
}

static void batch_run(batch *b, fy_ref_mode mode, int backward) {
    fy_ref_problem problem = {
        .tokens = b->tokens,
        .hidden = b->hidden,
        .intermediate = b->intermediate,
        .shared = b->shared,
        .experts = b->experts,
        .slots = b->slots,
        .limit = b->limit,
        .mode = mode,
        .x = b->value[X],
        .ids = b->ids,
        .weights = b->value[WEIGHTS],
        .gate = b->value[GATE],
        .up = b->value[UP],
        .down = b->value[DOWN],
        .shared_gate = b->value[SHARED_GATE],
        .shared_up = b->value[SHARED_UP],
        .shared_down = b->value[SHARED_DOWN],
        .dout = backward ? b->dout : NULL,
    };
    fy_ref_result result = {
        .out = b->out,
        .dx = b->gradient[X],
        .dweights = b->gradient[WEIGHTS],
        .dgate = b->gradient[GATE],
        .dup = b->gradient[UP],
        .ddown = b->gradient[DOWN],
        .dshared_gate = b->gradient[SHARED_GATE],
        .dshared_up = b->gradient[SHARED_UP],
        .dshared_down = b->gradient[SHARED_DOWN],
    };
    assert_int_equal(fy_ref_layer(&problem, &result), 0);
}

static double norm(const double *a, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sqrt(sum);
}

/* |a - b| / |b|; 0 where both are all zeros. */
static double distance(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum == 0 ? 0 : sqrt(sum) / norm(b, n);
}

#define ASSERT_NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-14 * fabs(b))

/* ---- Rounding ---- */

static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    const double from_to[][2] = {
        {1, 1},
        {1 + 0x1p-8, 1},                    /* tie, to even below */
        {1 + 0x3p-8, 1 + 0x1p-6},           /* tie, to even above */
        {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7}, /* just over a tie: no double rounding through F32 */
        {2 - 0x1p-9, 2},                    /* carries into the exponent */
        {-3.140625, -3.140625},             /* representable */
        {0x1p-133, 0x1p-133},               /* smallest denormal */
        {0x1p-134, 0},                      /* tie with 0 */
        {0x1.8p-134, 0x1p-133},
        {0x1.01p-127, 0x1p-127},  /* denormals are coarser */
        {0x1.fep127, 0x1.fep127}, /* largest finite */
        {0x1.ffp127, INFINITY},
        {1e300, INFINITY},
        {INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof from_to / sizeof *from_to; i++) {
        assert_true(fy_ref_bf16(from_to[i][0]) == from_to[i][1]);
        assert_true(fy_ref_bf16(-from_to[i][0]) == -from_to[i][1]);
    }
    assert_true(signbit(fy_ref_bf16(-0.0)));
    assert_true(isnan(fy_ref_bf16(NAN)));
}

static void rounding_stays_on_its_side_of_a_bound(void **state) {
    (void)state;
    assert_true(fy_ref_bf16_beside(1 + 0x1p-20, 1) == 1 + 0x1p-7); /* nearest is the bound itself */
    assert_true(fy_ref_bf16_beside(1, 1) == 1);
    assert_true(fy_ref_bf16_beside(1 - 0x1p-20, 1) == 1);
    /* a bound between two BF16 values, 1 and 1 + 2^-7 */
    assert_true(fy_ref_bf16_beside(1 + 0x1.cp-8, 1 + 0x1.cp-8) == 1);
    assert_true(fy_ref_bf16_beside(1 + 0x1.4p-9, 1 + 0x1p-9) == 1 + 0x1p-7);
    assert_true(fy_ref_bf16_beside(3.3, 1) == fy_ref_bf16(3.3));
    assert_true(fy_ref_bf16_beside(-3.3, 1) == fy_ref_bf16(-3.3));
    assert_true(isnan(fy_ref_bf16_beside(NAN, 1)));
}

/* ---- By hand: one token, one expert, all sizes 1 ---- */

static batch single(double x, double weight, double gate, double up, double down) {
    batch b = {.tokens = 1, .hidden = 1, .intermediate = 1, .experts = 1, .slots = 1};
    batch_alloc(&b);
    *b.value[X] = x;
    *b.value[WEIGHTS] = weight;
    *b.value[GATE] = gate;
    *b.value[UP] = up;
    *b.value[DOWN] = down;
    *b.dout = 1;
    *b.ids = 0;
    return b;
}

static void exact_values_by_hand(void **state) {
    (void)state;
    const double log3 = 1.0986122886681098;    /* sigmoid(log 3) = 3/4 */
    batch b = single(2, -3, log3 / 2, 1, 0.5); /* g = log 3, u = 2, h = 1.5 log 3 */
    batch_run(&b, FY_REF_EXACT, 1);
    ASSERT_NEAR(*b.out, -2.25 * log3);
    ASSERT_NEAR(*b.gradient[WEIGHTS], 0.75 * log3);
    double dg = -1.5 * 2 * 0.75 * (1 + 0.25 * log3), du = -1.5 * 0.75 * log3;
    ASSERT_NEAR(*b.gradient[GATE], 2 * dg);
    ASSERT_NEAR(*b.gradient[UP], 2 * du);
    ASSERT_NEAR(*b.gradient[DOWN], -4.5 * log3);
    ASSERT_NEAR(*b.gradient[X], dg * log3 / 2 + du);
    batch_free(&b);
}

/* silu(1) = 0.7310585..., silu'(1) = 0.9276705...; BF16 values are 2^-8 apart below 1, 2^-6 apart from 2 to 4. */
static void rounding_points_by_hand(void **state) {
    (void)state;
    batch b = single(1, 3, 1, 1, 1);
    batch_run(&b, FY_REF_POINTS, 1);
    assert_true(*b.out == 2.1875);                         /* 3 * bf16(0.7310585 = 187.15 / 256), = 140.25 / 64 */
    ASSERT_NEAR(*b.gradient[WEIGHTS], 0.7310585786300049); /* not rounded */
    assert_true(*b.gradient[DOWN] == 2.1875);              /* 2.1931757 = 140.36 / 64 */
    assert_true(*b.gradient[GATE] == 2.78125);             /* 2.7830115 = 178.11 / 64 */
    assert_true(*b.gradient[UP] == 2.1875);
    assert_true(*b.gradient[X] == 4.96875);
    batch_free(&b);
}

static void clamped_gradients_by_hand(void **state) {
    (void)state;
    const double a_little = 0x1p-20; /* less than BF16 keeps beside 1 */
    const struct {
        double gate, up;
        int dgate, dup; /* whether a gradient passes */
    } cases[] = {
        {1, 0.5, 1, 1},
        {1 - a_little, 0.5, 1, 1},
        {1 + a_little, 0.5, 0, 1},
        {-5, 0.5, 1, 1},
        {5, 5, 0, 0},
        {0.5, 1, 1, 1},
        {0.5, 1 - a_little, 1, 1},
        {0.5, 1 + a_little, 1, 0},
        {0.5, 5, 1, 0},
        {0.5, -1, 1, 1},
        {0.5, a_little - 1, 1, 1},
        {0.5, -1 - a_little, 1, 0},
        {0.5, -5, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int mode = FY_REF_EXACT; mode <= FY_REF_POINTS; mode++) {
            batch b = single(1, 1, cases[i].gate, cases[i].up, 1);
            b.limit = 1;
            batch_run(&b, (fy_ref_mode)mode, 1);
            assert_int_equal(*b.gradient[GATE] != 0, cases[i].dgate);
            assert_int_equal(*b.gradient[UP] != 0, cases[i].dup);
            double g = fmin(cases[i].gate, 1), u = fmax(fmin(cases[i].up, 1), -1), h = g * u / (1 + exp(-g));
            if (mode == FY_REF_EXACT) ASSERT_NEAR(*b.out, h);
            assert_true(fabs(*b.out - h) <= 0x1p-7 * fabs(h));
            assert_true(fabs(*b.gradient[WEIGHTS] - h) <= 0x1p-7 * fabs(h));
            batch_free(&b);
        }
    }
}

/* ---- Finite differences ---- */

static double loss(batch *b) {
    batch_run(b, FY_REF_EXACT, 0);
    double sum = 0;
    for (int64_t i = 0; i < b->n[X]; i++) sum += b->dout[i] * b->out[i];
    return sum;
}

static void check_finite_differences(batch *b) {
    const double step = 1e-5;
    batch_run(b, FY_REF_EXACT, 1);
    for (int t = 0; t < TENSORS; t++) {
        double *wanted = array(b->n[t]);
        for (int64_t i = 0; i < b->n[t]; i++) {
            double kept = b->value[t][i];
            b->value[t][i] = kept + step;
            double above = loss(b);
            b->value[t][i] = kept - step;
            double below = loss(b);
            b->value[t][i] = kept;
            wanted[i] = (above - below) / (2 * step);
        }
        double error = distance(b->gradient[t], wanted, b->n[t]);
        if (!(error <= 1e-6)) fail_msg("gradient of %s: relative error %g", tensor_name[t], error);
        if (b->n[t] > 0) assert_true(norm(wanted, b->n[t]) > 0);
        test_free(wanted);
    }
}

static void gradients_are_finite_differences(void **state) {
    (void)state;
    const batch sizes[] = {
        {.tokens = 5, .hidden = 6, .intermediate = 4, .shared = 0, .experts = 3, .slots = 2},
        {.tokens = 4, .hidden = 5, .intermediate = 3, .shared = 7, .experts = 4, .slots = 3},
        {.tokens = 5, .hidden = 4, .intermediate = 9, .shared = 5, .experts = 2, .slots = 4, .limit = 0.4},
        {.tokens = 4, .hidden = 17, .intermediate = 2, .shared = 3, .experts = 1, .slots = 3, .limit = 0.7},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        batch b = sizes[i];
        batch_alloc(&b);
        batch_fill(&b, 100 + i);
        b.ids[0] = b.ids[b.slots - 1] = 0; /* one expert twice in a token */
        b.ids[1] = b.slots > 2 ? -1 : 0;
        b.value[WEIGHTS][0] = 0;
        b.value[WEIGHTS][b.slots - 1] = -0.75;
        check_finite_differences(&b);
        assert_true(b.gradient[WEIGHTS][0] != 0); /* of weight 0 too */
        if (b.ids[1] == -1) assert_true(b.gradient[WEIGHTS][1] == 0);

        if (b.limit > 0) { /* the clamp was at work */
            double *clamped = array(b.n[X]);
            memcpy(clamped, b.out, (size_t)b.n[X] * sizeof(double));
            b.limit = 0;
            batch_run(&b, FY_REF_EXACT, 0);
            assert_true(distance(clamped, b.out, b.n[X]) > 0.05);
            test_free(clamped);
        }
        batch_free(&b);
    }
}

/* ---- Modes ---- */

static void modes_differ_by_rounding_only(void **state) {
    (void)state;
    const double limits[] = {0, 0.8};
    for (int l = 0; l < 2; l++) {
        batch exact = {.tokens = 24, .hidden = 64, .intermediate = 80, .shared = 72, .experts = 5, .slots = 4};
        exact.limit = limits[l];
        batch points = exact;
        batch_alloc(&exact);
        batch_alloc(&points);
        batch_fill(&exact, 7);
        batch_fill(&points, 7);
        batch_run(&exact, FY_REF_EXACT, 1);
        batch_run(&points, FY_REF_POINTS, 1);
        double error = distance(points.out, exact.out, exact.n[X]);
        if (!(error >= 1e-4 && error <= 1e-2)) fail_msg("out: relative distance %g", error);
        for (int t = 0; t < TENSORS; t++) {
            error = distance(points.gradient[t], exact.gradient[t], exact.n[t]);
            if (!(error >= 1e-4 && error <= 1e-2)) fail_msg("gradient of %s: %g", tensor_name[t], error);
        }
        for (int64_t i = 0; i < exact.n[X]; i++) {
            assert_true(points.out[i] == fy_ref_bf16(points.out[i]));
            assert_true(points.gradient[X][i] == fy_ref_bf16(points.gradient[X][i]));
        }
        batch_free(&exact);
        batch_free(&points);
    }
}

/* ---- Slots without an expert, NaN, nothing at all ---- */

static int any_nan(const double *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(values[i])) return 1;
    }
    return 0;
}

static void weights_without_an_expert_are_not_read(void **state) {
    (void)state;
    const int64_t nobody[] = {-1, 3, -2, INT64_MAX, INT64_MIN, 1000000};
    batch b = {.tokens = 2, .hidden = 8, .intermediate = 8, .shared = 4, .experts = 3, .slots = 6};
    batch_alloc(&b);
    batch_fill(&b, 5);
    for (int k = 0; k < 6; k++) {
        b.ids[k] = nobody[k];
        b.value[WEIGHTS][k] = NAN;
        b.ids[6 + k] = 1; /* all slots of the second token share one expert */
    }
    for (int mode = FY_REF_EXACT; mode <= FY_REF_POINTS; mode++) {
        batch_run(&b, (fy_ref_mode)mode, 1);
        assert_false(any_nan(b.out, b.n[X]));
        for (int t = 0; t < TENSORS; t++) assert_false(any_nan(b.gradient[t], b.n[t]));
        for (int k = 0; k < 6; k++) assert_true(b.gradient[WEIGHTS][k] == 0 && b.gradient[WEIGHTS][6 + k] != 0);
        /* experts 0 and 2 have no rows: their gradients are zeros, not missing */
        for (int t = GATE; t <= DOWN; t++) {
            assert_true(norm(b.gradient[t], 64) == 0);
            assert_true(norm(b.gradient[t] + 64, 64) > 0);
            assert_true(norm(b.gradient[t] + 128, 64) == 0);
        }
    }
    batch_free(&b);
}

static void nan_reaches_what_it_should(void **state) {
    (void)state;
    batch b = {.tokens = 3, .hidden = 8, .intermediate = 8, .experts = 3, .slots = 1, .limit = 0.5};
    batch_alloc(&b);
    for (int mode = FY_REF_EXACT; mode <= FY_REF_POINTS; mode++) {
        batch_fill(&b, 9);
        for (int t = 0; t < 3; t++) b.ids[t] = t;
        b.value[X][8] = NAN;
        b.value[WEIGHTS][1] = 0; /* does not hide it */
        batch_run(&b, (fy_ref_mode)mode, 1);
        for (int t = 0; t < 3; t++) {
            int nan = t == 1;
            assert_int_equal(isnan(b.gradient[WEIGHTS][t]) != 0, nan);
            for (int j = 0; j < 8; j++) {
                assert_int_equal(isnan(b.out[8 * t + j]) != 0, nan);
                assert_int_equal(isnan(b.gradient[X][8 * t + j]) != 0, nan);
            }
            for (int i = GATE; i <= DOWN; i++) assert_int_equal(any_nan(b.gradient[i] + 64 * t, 64), nan);
        }
        b.value[X][8] = 1;
        b.value[WEIGHTS][1] = NAN; /* reaches everything but its own gradient */
        batch_run(&b, (fy_ref_mode)mode, 1);
        assert_true(any_nan(b.out + 8, 8) && any_nan(b.gradient[X] + 8, 8));
        assert_false(any_nan(b.out, 8) || any_nan(b.out + 16, 8) || any_nan(b.gradient[WEIGHTS], 3));
    }
    batch_free(&b);
}

static void nothing_to_do(void **state) {
    (void)state;
    batch b = {.tokens = 0, .hidden = 4, .intermediate = 4, .shared = 4, .experts = 2, .slots = 2};
    batch_alloc(&b);
    batch_fill(&b, 1);
    batch_run(&b, FY_REF_POINTS, 1);
    for (int t = GATE; t < TENSORS; t++) assert_true(norm(b.gradient[t], b.n[t]) == 0);
    batch_free(&b);

    b = (batch){.tokens = 2, .hidden = 4, .intermediate = 4, .experts = 2, .slots = 1};
    batch_alloc(&b);
    batch_fill(&b, 1);
    b.ids[0] = b.ids[1] = -1;
    batch_run(&b, FY_REF_POINTS, 0);
    assert_true(norm(b.out, b.n[X]) == 0);
    for (int t = 0; t < TENSORS; t++) { /* forward alone leaves the gradients as they were */
        for (int64_t i = 0; i < b.n[t]; i++) assert_true(isnan(b.gradient[t][i]));
    }
    batch_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_to_nearest_even),   cmocka_unit_test(rounding_stays_on_its_side_of_a_bound),
        cmocka_unit_test(exact_values_by_hand),          cmocka_unit_test(rounding_points_by_hand),
        cmocka_unit_test(clamped_gradients_by_hand),     cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(modes_differ_by_rounding_only), cmocka_unit_test(weights_without_an_expert_are_not_read),
        cmocka_unit_test(nan_reaches_what_it_should),    cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests_name("ref", tests, NULL, NULL);
}
