/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of layers that no machine can hold: the bytes are right or refused, never wrapped around. */
#include "ferry/ferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <limits.h>
#include <string.h>

static const int64_t LARGEST = INT64_C(1) << 30; /* of H, I, S and max_tokens */

static ferry_layer_config config_of(int64_t hidden, int64_t intermediate, int64_t shared, int64_t tokens) {
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = hidden;
    config.intermediate = intermediate;
    config.shared = shared;
    config.experts = config.slots = 1;
    config.max_tokens = tokens;
    return config;
}

static void assert_refused(ferry_layer_config config, const char *region) {
    ferry_plan plan;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 1, 1, 1, &plan), FERRY_E_MEMORY);
    assert_non_null(strstr(ferry_last_error(), region));
}

static void test_too_large(void **state) {
    (void)state;
    assert_refused(config_of(LARGEST, 1, 0, LARGEST - 1), "symmetric memory");
    assert_refused(config_of(1, LARGEST, 0, LARGEST - 1), "the ring");
    assert_refused(config_of(1, 1, LARGEST, LARGEST - 1), "row tables");
    ferry_layer_config config = config_of(1, LARGEST, 0, LARGEST - 1);
    config.ring_rows = 64;
    assert_refused(config, "a context");
    config.context_rows = 0;
    config.hidden = LARGEST / 64; /* three F32 sums of H x I */
    config.max_tokens = 1000;
    ferry_plan plan;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 1, 1, 1, &plan), FERRY_OK);
    assert_true(plan.table_bytes > 12 * config.hidden * config.intermediate);
    assert_true(plan.layer_bytes == plan.symmetric_bytes + plan.ring_bytes + plan.table_bytes);
    config.hidden = LARGEST;
    assert_refused(config, "row tables");
}

/* Every further worker costs the same. */
static void test_many_workers(void **state) {
    (void)state;
    ferry_layer_config config = config_of(8, 8, 0, 10);
    config.minibatch_rows = config.ring_rows = 64;
    ferry_plan two, three, most;
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 1, 1, 1, &two), FERRY_OK);
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 1, 1, 2, &three), FERRY_OK);
    assert_int_equal(ferry_layer_plan(&config, FERRY_CPU, 0, 1, INT_MAX, INT_MAX, &most), FERRY_OK);
    int64_t each = three.table_bytes - two.table_bytes;
    assert_true(most.table_bytes == two.table_bytes + (2 * (int64_t)INT_MAX - 2) * each);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_too_large), cmocka_unit_test(test_many_workers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
