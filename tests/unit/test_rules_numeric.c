/* SPDX-License-Identifier: Apache-2.0 */
/* The numeric rules against their definitions; the row functions: the same bits on every instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/product.h"
#include "rules/swiglu.h"

static uint64_t random_state;

static uint32_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 16);
}

/* Uniform in (-scale, scale). */
static float random_value(float scale) { return ((float)(random_bits() >> 8) * 0x1p-23f - 1.0f) * scale; }

static const float specials[] = {0.0f,
                                 -0.0f,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 -NAN,
                                 0x1p-149f,
                                 -0x1p-149f,
                                 0x1p-133f,
                                 0x1p-126f,
                                 -0x1p-127f,
                                 0x1.fffffep127f,
                                 -0x1.fffffep127f,
                                 0x1.fep127f,
                                 0x1.ffp127f,
                                 88.72f,
                                 88.73f,
                                 -87.3f,
                                 -103.9f,
                                 -104.1f,
                                 1.0f,
                                 7.0f,
                                 -7.0f,
                                 6.999f,
                                 -6.999f,
                                 7.001f,
                                 -7.001f,
                                 7.0156f,
                                 0.3f,
                                 -0.3f,
                                 1e30f};
enum { SPECIALS = sizeof specials / sizeof *specials };

/* Every BF16 number, NaN aside, survives; between neighbours the nearer one wins, ties go to even. */
static void test_bf16(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b++) {
        float value = fy_bf16_to_f32((uint16_t)b);
        if (isnan(value)) {
            assert_int_equal(fy_bf16_from_f32(value), FY_BF16_NAN);
            continue;
        }
        assert_int_equal(fy_bf16_from_f32(value), b);
        if (isinf(value)) continue;
        uint32_t bits = b << 16, even = b & 1 ? b + 1 : b;
        assert_int_equal(fy_bf16_from_f32(fy_float_of(bits | 0x7fff)), b);
        assert_int_equal(fy_bf16_from_f32(fy_float_of(bits | 0x8000)), even);
        assert_int_equal(fy_bf16_from_f32(fy_float_of(bits | 0x8001)), b + 1);
    }
    /* NaN whose payload is in the lower half only must not become Inf. */
    assert_int_equal(fy_bf16_from_f32(fy_float_of(0x7f800001u)), FY_BF16_NAN);
    assert_int_equal(fy_bf16_from_f32(fy_float_of(0xffffffffu)), FY_BF16_NAN);
    assert_int_equal(fy_bits_of(fy_one_nan(fy_float_of(0xff800001u))), FY_F32_NAN_BITS);
    assert_int_equal(fy_bits_of(fy_one_nan(-0.0f)), 0x80000000u);
    assert_int_equal(fy_bits_of(fy_one_nan(-INFINITY)), 0xff800000u);
}

/* A value near a bound: the sides are kept, and the result is one of the two neighbours, the nearer one if it may be.
 */
static void check_between(float value, float low, float high) {
    uint16_t got = fy_bf16_from_f32_between(value, low, high), nearest = fy_bf16_from_f32(value);
    float back = fy_bf16_to_f32(got), near = fy_bf16_to_f32(nearest);
    if (isnan(value)) {
        assert_true(isnan(back));
        return;
    }
    int same_side = (near > high) == (value > high) && (near < low) == (value < low);
    if ((back > high) != (value > high) || (back < low) != (value < low))
        fail_msg("%a between %a and %a became %a: another side", (double)value, (double)low, (double)high,
                 (double)back);
    if (same_side) {
        assert_int_equal(got, nearest);
        return;
    }
    uint32_t towards_zero = fy_bits_of(value) >> 16;
    assert_true(got == towards_zero || got == towards_zero + 1);
}

static void test_between(void **state) {
    (void)state;
    for (int n = 0; n < 3000; n++) {
        float bound = n == 0     ? 7.0f
                      : n < 1000 ? fabsf(random_value(10.0f)) + 0x1p-20f
                                 : fy_float_of(random_bits() & 0x7fffffff);
        if (!(bound > 0)) continue;
        uint32_t centre = fy_bits_of(bound);
        for (int i = 0; i < 40; i++) {
            uint32_t offset = i < 5 ? (uint32_t)(i - 2) : random_bits() % 0x30000 - 0x18000;
            uint32_t bits = centre + offset;
            for (uint32_t sign = 0; sign < 2; sign++) {
                float value = fy_float_of((bits & 0x7fffffffu) | sign << 31);
                check_between(value, -bound, bound);
                check_between(value, -INFINITY, bound);
                check_between(value, -INFINITY, INFINITY);
            }
        }
        for (int i = 0; i < SPECIALS; i++) check_between(specials[i], -bound, bound);
    }
    /* Nearest would have crossed. */
    assert_int_equal(fy_save_up(7.001f, 7.0f), 0x40e1);
    assert_int_equal(fy_save_up(-7.001f, 7.0f), 0xc0e1);
    assert_int_equal(fy_save_gate(7.001f, 7.0f), 0x40e1);
    assert_int_equal(fy_save_gate(-7.001f, 7.0f), 0xc0e0);
    assert_int_equal(fy_save_gate(6.999f, 6.9995f), 0x40df);
    assert_int_equal(fy_save_gate(7.0f, 7.0f), 0x40e0);
}

/* The distance of a result from the true value, in units of the last place of the true value as F32. */
static double ulps(float got, double expected) {
    int exponent;
    frexp(expected, &exponent);
    if (exponent < -125) exponent = -125;
    return fabs(got - expected) / ldexp(1.0, exponent - 24);
}

static void check_exp(float x) {
    float got = fy_exp(x);
    double expected = exp((double)x);
    if (expected >= 0x1.ffffffp127) {
        if (!(got == INFINITY)) fail_msg("exp(%a) is %a, expected Inf", (double)x, (double)got);
    } else if (!(ulps(got, expected) <= 1.0)) {
        fail_msg("exp(%a) is %a, expected %a", (double)x, (double)got, expected);
    }
}

static void test_exp(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 2503) {
        check_exp(fy_float_of(bits));
        check_exp(fy_float_of(bits | 0x80000000u));
    }
    for (int n = 0; n < 1000000; n++) check_exp(random_value(104.5f));
    for (int n = 0; n < 400000; n++) check_exp(-fabsf(random_value(2.0f)));
    for (int i = 0; i < SPECIALS; i++)
        if (!isnan(specials[i])) check_exp(specials[i]);
    assert_true(isnan(fy_exp(NAN)));
    assert_true(isnan(fy_exp(-NAN)));
    assert_true(fy_exp(0.0f) == 1.0f && fy_exp(-0.0f) == 1.0f);
    assert_true(fy_exp(-INFINITY) == 0.0f);
    assert_true(fy_exp(-103.0f) > 0.0f && fy_exp(-103.0f) < 0x1p-140f); /* a denormal is not flushed */
}

/* SwiGLU and its gradient in double, by their definitions. */
typedef struct expected_swiglu {
    double h, dg, du;
} expected_swiglu;

static expected_swiglu swiglu_in_double(double g, double u, double dh, double limit) {
    double gate = limit > 0 && g > limit ? limit : g;
    double up = limit > 0 ? (u > limit ? limit : u < -limit ? -limit : u) : u;
    double sigmoid = 1 / (1 + exp(-gate));
    expected_swiglu e;
    e.h = gate * sigmoid * up;
    e.dg = limit > 0 && g > limit ? 0 : dh * up * sigmoid * (1 + gate / (1 + exp(gate)));
    e.du = limit > 0 && fabs(u) > limit ? 0 : dh * gate * sigmoid;
    return e;
}

static void test_swiglu(void **state) {
    (void)state;
    static const float limits[] = {0.0f, 7.0f, 0.5f};
    for (int n = 0; n < 600000; n++) {
        float configured = limits[n % 3], limit = fy_swiglu_limit(configured);
        float g = random_value(n % 2 ? 4.0f : 80.0f), u = random_value(10.0f), dh = random_value(3.0f);
        expected_swiglu e = swiglu_in_double(g, u, dh, configured);
        fy_swiglu_gradient got = fy_swiglu_grad(g, u, dh, limit);
        float h = fy_swiglu(g, u, limit);
        assert_int_equal(fy_bits_of(h), fy_bits_of(got.h));
        if (!(fabs(h - e.h) <= 8e-7 * fabs(e.h) + 1e-37))
            fail_msg("h(%a, %a) is %a, not %a", (double)g, (double)u, (double)h, e.h);
        /* the slope of silu cancels at its zero: there the error is absolute */
        if (!(fabs(got.dg - e.dg) <= 1e-6 * (fabs(e.dg) + fabs((double)dh * u) * exp(-fabs((double)g)))))
            fail_msg("dg(%a, %a) is %a, not %a", (double)g, (double)u, (double)got.dg, e.dg);
        if (!(fabs(got.du - e.du) <= 8e-7 * fabs(e.du) + 1e-37))
            fail_msg("du(%a, %a) is %a, not %a", (double)g, (double)u, (double)got.du, e.du);
    }
}

static void test_swiglu_edges(void **state) {
    (void)state;
    const float inf = INFINITY;
    /* NaN passes clamps and comes out. */
    assert_true(isnan(fy_clamp_gate(NAN, 7.0f)) && isnan(fy_clamp_up(NAN, 7.0f)) && isnan(fy_clamp_up(-NAN, inf)));
    assert_true(isnan(fy_swiglu(NAN, 1.0f, 7.0f)) && isnan(fy_swiglu(1.0f, NAN, 7.0f)));
    assert_true(isnan(fy_swiglu_grad(NAN, 1.0f, 1.0f, 7.0f).dg) && isnan(fy_swiglu_grad(1.0f, NAN, 1.0f, 7.0f).dg));
    assert_true(isnan(fy_swiglu_grad(NAN, 1.0f, 1.0f, 7.0f).du));
    /* Clamps; equality passes the gradient. */
    assert_true(fy_clamp_gate(9.0f, 7.0f) == 7.0f && fy_clamp_gate(-9.0f, 7.0f) == -9.0f);
    assert_true(fy_clamp_up(9.0f, 7.0f) == 7.0f && fy_clamp_up(-9.0f, 7.0f) == -7.0f);
    assert_true(fy_swiglu_grad(7.0f, 7.0f, 1.0f, 7.0f).dg > 6.0f && fy_swiglu_grad(7.0f, 7.0f, 1.0f, 7.0f).du > 6.0f);
    assert_true(fy_swiglu_grad(1.0f, -7.0f, 1.0f, 7.0f).du > 0.7f);
    assert_true(fy_swiglu_grad(7.001f, 1.0f, 1.0f, 7.0f).dg == 0.0f &&
                fy_swiglu_grad(7.001f, 1.0f, 1.0f, 7.0f).du > 6.0f);
    assert_true(fy_swiglu_grad(1.0f, -7.001f, 1.0f, 7.0f).du == 0.0f &&
                fy_swiglu_grad(1.0f, 7.001f, 1.0f, 7.0f).du == 0.0f);
    assert_true(fy_swiglu_grad(inf, inf, 1.0f, 7.0f).dg == 0.0f && fy_swiglu_grad(inf, inf, NAN, 7.0f).du == 0.0f);
    assert_true(fy_swiglu(inf, inf, 7.0f) > 48.9f && fy_swiglu(inf, inf, 7.0f) < 49.0f);
    /* Far out: no overflow inside. */
    assert_true(fy_silu(200.0f) == 200.0f && fy_silu(-200.0f) == 0.0f && fy_silu(0.0f) == 0.0f);
    assert_true(fy_silu(-95.0f) < 0.0f && fy_silu(-95.0f) > -1e-38f);
    assert_true(fy_swiglu_limit(0.0f) == inf && fy_swiglu_limit(7.0f) == 7.0f);
}

/* ---- Row functions ---- */

static int kernels_count;
static const fy_kernels *kernels[3];

enum { MOST = 1000 };
typedef struct rows {
    float dh[MOST], g[MOST], u[MOST], acc[MOST];
    uint16_t saved_g[MOST], saved_u[MOST], y[MOST];
} rows;
typedef struct results {
    uint16_t rounded[MOST], h[MOST], h_alone[MOST], g[MOST], u[MOST], dg[MOST], du[MOST], wh[MOST];
    float weighted[MOST], widened[MOST], added[MOST], sum;
} results;

static float random_or_special(int special, float scale) {
    if (special && random_bits() % 4 == 0) return specials[random_bits() % SPECIALS];
    if (special && random_bits() % 8 == 0) return fy_float_of(random_bits());
    return random_value(scale);
}

static void fill(rows *in, int special) {
    for (int i = 0; i < MOST; i++) {
        in->dh[i] = random_or_special(special, 2.0f);
        in->g[i] = random_or_special(special, 12.0f);
        in->u[i] = random_or_special(special, 12.0f);
        in->acc[i] = random_or_special(special, 2.0f);
        in->saved_g[i] = fy_save_gate(random_or_special(special, 12.0f), 7.0f);
        in->saved_u[i] = fy_save_up(random_or_special(special, 12.0f), 7.0f);
        in->y[i] = special && random_bits() % 4 == 0 ? (uint16_t)random_bits() : fy_bf16_from_f32(random_value(2.0f));
    }
}

static void run(const fy_kernels *k, results *out, const rows *in, int64_t n, float weight, float limit) {
    memset(out, 0xa5, sizeof *out);
    k->round_row(out->rounded, in->acc, n);
    k->swiglu_row(out->h, out->g, out->u, in->g, in->u, n, limit);
    k->swiglu_row(out->h_alone, NULL, NULL, in->g, in->u, n, limit);
    out->sum = k->swiglu_grad_row(out->dg, out->du, out->wh, in->dh, in->saved_g, in->saved_u, n, weight, limit);
    memcpy(out->weighted, in->acc, sizeof(float) * (size_t)n);
    memcpy(out->added, in->acc, sizeof(float) * (size_t)n);
    k->weighted_add_row(out->weighted, in->y, n, weight);
    k->widen_row(out->widened, in->y, n);
    k->add_row(out->added, in->y, n);
}

/* The interface's words, one element at a time. */
static void run_by_definition(results *out, const rows *in, int64_t n, float weight, float configured) {
    float limit = fy_swiglu_limit(configured), lanes[16] = {0};
    memset(out, 0xa5, sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        out->rounded[i] = fy_bf16_from_f32(in->acc[i]);
        out->h[i] = out->h_alone[i] = fy_bf16_from_f32(fy_swiglu(in->g[i], in->u[i], limit));
        out->g[i] = fy_save_gate(in->g[i], limit);
        out->u[i] = fy_save_up(in->u[i], limit);
        fy_swiglu_gradient grad =
            fy_swiglu_grad(fy_bf16_to_f32(in->saved_g[i]), fy_bf16_to_f32(in->saved_u[i]), weight * in->dh[i], limit);
        out->dg[i] = fy_bf16_from_f32(grad.dg);
        out->du[i] = fy_bf16_from_f32(grad.du);
        out->wh[i] = fy_bf16_from_f32(weight * grad.h);
        float product = in->dh[i] * grad.h;
        lanes[i % 16] += product;
        float y = fy_bf16_to_f32(in->y[i]);
        float weighted = weight * y;
        out->weighted[i] = fy_one_nan(in->acc[i] + weighted);
        out->widened[i] = y;
        out->added[i] = fy_one_nan(in->acc[i] + y);
    }
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    out->sum = fy_one_nan(lanes[0]);
}

static void test_rows(void **state) {
    (void)state;
    static rows in;
    static results expected, got;
    static const float weights[] = {1.0f, 0.0f, -0.37f, NAN, INFINITY, 0x1p-140f, 0.125f};
    static const float limits[] = {0.0f, 7.0f, 6.9876f};
    for (int n = 0; n < 400; n++) {
        int64_t count = n < 70 ? n : (int64_t)(random_bits() % (MOST + 1));
        float weight = n % 2 ? random_value(1.0f) : weights[n / 2 % 7], limit = limits[n % 3];
        fill(&in, n % 4 != 0);
        run_by_definition(&expected, &in, count, weight, limit);
        for (int isa = 0; isa < kernels_count; isa++) {
            run(kernels[isa], &got, &in, count, weight, limit);
            if (memcmp(&got, &expected, sizeof got) == 0) continue;
            for (size_t i = 0; i < sizeof got / 2; i++)
                if (((uint16_t *)&got)[i] != ((uint16_t *)&expected)[i])
                    fail_msg(
                        "%s, %lld values, weight %a, limit %a: half-word %zu of the results is %04x, expected %04x",
                        kernels[isa]->name, (long long)count, (double)weight, (double)limit, i, ((uint16_t *)&got)[i],
                        ((uint16_t *)&expected)[i]);
        }
    }
}

/* The router weight's gradient against FP64, on unit-scale data. */
static void test_weight_gradient(void **state) {
    (void)state;
    static rows in;
    static results got;
    fill(&in, 0);
    double sum = 0, magnitude = 0;
    for (int i = 0; i < MOST; i++) {
        double h = swiglu_in_double(fy_bf16_to_f32(in.saved_g[i]), fy_bf16_to_f32(in.saved_u[i]), 0, 7).h;
        sum += h * in.dh[i];
        magnitude += fabs(h * in.dh[i]);
    }
    for (int isa = 0; isa < kernels_count; isa++) {
        run(kernels[isa], &got, &in, MOST, 0.0f, 7.0f);
        assert_true(magnitude > 100);
        assert_true(fabs(got.sum - sum) <= 1e-6 * magnitude);
    }
}

int main(void) {
    const char *seed = getenv("FERRY_TEST_SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    printf("FERRY_TEST_SEED=%llu\n", (unsigned long long)random_state);
    for (int isa = FERRY_ISA_PORTABLE; isa <= FERRY_ISA_AVX512; isa++)
        if (fy_kernels_select((ferry_isa)isa, &kernels[kernels_count]) == FERRY_OK) kernels_count++;
    for (int i = 0; i < kernels_count; i++) printf("instruction set: %s\n", kernels[i]->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_swiglu_edges),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_weight_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
