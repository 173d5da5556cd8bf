/* SPDX-License-Identifier: Apache-2.0 */
/* What the header promises about ferry_layer_plan: rounding of rows, limits of one knob by another, sums of bytes. */
#include "core/layer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "said.h"

static ferry_layer_config config_of(int64_t minibatch, int64_t ring, int64_t context) {
    ferry_layer_config c;
    ferry_layer_config_init(&c);
    c.hidden = 32;
    c.intermediate = 16;
    c.experts = 7;
    c.slots = 2;
    c.max_tokens = 1000;
    c.minibatch_rows = minibatch;
    c.ring_rows = ring;
    c.context_rows = context;
    return c;
}

static ferry_plan plan_of(ferry_layer_config config, int rank) {
    ferry_plan plan = {.size = sizeof plan};
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, rank, 3, 1, 2, &plan), FERRY_OK);
    return plan;
}

static void test_rows_are_rounded_up(void **state) {
    static const int64_t given[] = {1, 63, 64, 65, 100, 127, 128, 129, 449};
    (void)state;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        int64_t rounded = (given[i] + 63) / 64 * 64;
        ferry_plan plan = plan_of(config_of(given[i], 640, given[i]), 0);
        assert_int_equal(plan.minibatch_rows, rounded);
        assert_int_equal(plan.context_rows, rounded);
        assert_int_equal(plan_of(config_of(64, given[i], 0), 0).ring_rows, rounded);
    }
}

static void test_limits(void **state) {
    (void)state;
    ferry_plan plan = plan_of(config_of(1000, 100, 0), 0);
    assert_int_equal(plan.ring_rows, 128);
    assert_int_equal(plan.minibatch_rows, 128); /* at most the ring */
    assert_int_equal(plan.context_rows, 0);
    plan = plan_of(config_of(0, 1 << 30, 1 << 30), 0);
    assert_int_equal(plan.max_rows, 3 * 1000 * 2);
    assert_true(plan.ring_rows <= plan.max_rows + plan.local_experts * 64); /* no larger than any routing fills */
    assert_true(plan.context_rows <= plan.max_rows + plan.local_experts * 64);
    for (int rank = 0; rank < 3; rank++) {
        plan = plan_of(config_of(0, 0, -1), rank);
        assert_int_equal(plan.local_experts, rank == 0 ? 3 : 2);
        assert_int_equal(plan.minibatch_rows % 64 + plan.ring_rows % 64 + plan.context_rows % 64, 0);
        assert_true(plan.minibatch_rows >= 64 && plan.minibatch_rows <= plan.ring_rows);
        assert_int_equal(plan.layer_bytes, plan.symmetric_bytes + plan.ring_bytes + plan.table_bytes);
    }
}

/* What the CUDA backend chooses; the bytes are those of its layer, which takes the same function. */
static void test_cuda(void **state) {
    ferry_layer_config config = config_of(0, 0, -1);
    ferry_plan plan = {.size = sizeof plan}, other = plan;
    (void)state;
    ferry_status status = ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 0, 0, &plan);
    if (status == FERRY_E_UNSUPPORTED && fy_backend_of(FERRY_CUDA) == NULL) skip();
    assert_int_equal(status, FERRY_OK);
    assert_true(plan.multiprocessors == 132 && plan.pull_warps == 2 && plan.fan_out == 1 && plan.comm_sms == 0);
    assert_true(plan.comm_workers == 0 && plan.tuned == 0);
    assert_true(plan.minibatch_rows >= 64 && plan.minibatch_rows <= plan.ring_rows);
    assert_int_equal(plan.layer_bytes, plan.symmetric_bytes + plan.ring_bytes + plan.table_bytes);
    config.sm_margin = 32;
    config.comm_sms = 20;
    config.fan_out = 2;
    config.pull_warps = 1;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 2, 0, &other), FERRY_OK);
    assert_true(other.multiprocessors == 100 && other.comm_sms == 20 && other.fan_out == 2 && other.pull_warps == 1);
    assert_int_equal(other.layer_bytes, plan.layer_bytes); /* none of these needs memory */
    config.pull_warps = 3;                                 /* more than there are */
    assert_int_equal(ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 2, 0, &other), FERRY_OK);
    assert_int_equal(other.pull_warps, 2);
    config.pull_warps = 0;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 1, 60, &other), FERRY_OK);
    assert_true(other.multiprocessors == 28 && other.pull_warps == 1);

    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 1, 3, 0, 32, &other), FERRY_E_INVALID,
                "sm_margin is 32 of the 32");
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 1, 3, 0, 52, &other), FERRY_E_INVALID,
                "comm_sms is 20 of the 20");
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 1, 3, 4, 0, &other), FERRY_E_INVALID, "4 pulling warps");
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 1, 3, -1, 0, &other), FERRY_E_INVALID, "expected >= 0");
    config.hidden = 36;
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 0, 0, &other), FERRY_E_UNSUPPORTED, "multiples of 8");
    config.hidden = 32;
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 0, 17, 0, 0, &other), FERRY_E_UNSUPPORTED, "17 ranks");
    assert_said(ferry_layer_plan(&config, (ferry_backend)2, 0, 1, 1, 1, &other), FERRY_E_INVALID, "backend is 2");
    config.fan_out = 3;
    assert_said(ferry_layer_plan(&config, FERRY_CUDA, 0, 3, 0, 0, &other), FERRY_E_INVALID, "fan_out is 3");
}

static void test_errors_leave_the_plan(void **state) {
    ferry_layer_config config = config_of(0, 0, -1);
    ferry_plan plan = {.minibatch_rows = -7};
    (void)state;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 3, 3, 1, 1, &plan), FERRY_E_INVALID);
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 3, 0, 1, &plan), FERRY_E_INVALID);
    assert_int_equal(ferry_layer_plan(NULL, FERRY_CPU, 0, 3, 1, 1, &plan), FERRY_E_INVALID);
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 3, 1, 1, NULL), FERRY_E_INVALID);
    config.ring_rows = -1;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 3, 1, 1, &plan), FERRY_E_INVALID);
    assert_int_equal(plan.minibatch_rows, -7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_rounded_up),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_errors_leave_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
