/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `ferry check` must be able to fail: comparisons, guards around tensors, values that do not move. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "cli/check/shard.h"

#include <math.h>
#include <string.h>

static check_verdict verdict;
static const check_options options;
static const check_case the_case = {&verdict, &options, NULL};

static const check_problem small = {
    .seed = 3, .tokens = 10, .hidden = 12, .intermediate = 6, .shared = 4, .experts = 4, .slots = 2};
static const check_way plain = {.ranks = 2};

static check_batch batch;

static int setup(void **state) {
    (void)state;
    memset(&verdict, 0, sizeof verdict);
    return check_batch_make(&small, &batch) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    check_batch_free(&batch);
    return 0;
}

static void assert_failed_with(const char *text) {
    assert_true(check_failed(&the_case));
    if (!strstr(verdict.text, text)) fail_msg("'%s' does not hold '%s'", verdict.text, text);
    memset(&verdict, 0, sizeof verdict);
}

/* ---- Comparing ---- */

/* The reference, rounded to what a layer would hand out. */
static check_result *ideal(const check_way *way) {
    check_result *want = check_reference(&the_case, &batch, way, FY_REF_POINTS);
    check_result *got = check_result_make(&the_case, &batch, way, 0);
    assert_non_null(want);
    assert_non_null(got);
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        for (int64_t i = 0; i < got->tensor[id].count; i++) {
            float value = (float)check_value(&want->tensor[id], i);
            if (got->tensor[id].dtype == FERRY_F32)
                ((float *)(void *)got->tensor[id].data)[i] = value;
            else
                ((uint16_t *)(void *)got->tensor[id].data)[i] = check_bf16(value);
        }
    }
    check_result_free(want);
    return got;
}

static void a_right_result_passes(void **state) {
    (void)state;
    check_result *got = ideal(&plain);
    check_against_reference(&the_case, &batch, &plain, got);
    check_same_bits(&the_case, got, got, "itself");
    assert_false(check_failed(&the_case));
    check_result_free(got);
}

static void every_tensor_is_compared(void **state) {
    (void)state;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        check_result *got = ideal(&plain);
        check_tensor *tensor = &got->tensor[id];
        memset(tensor->data, 0, (size_t)tensor->count * check_dtype_bytes(tensor->dtype));
        check_against_reference(&the_case, &batch, &plain, got);
        assert_failed_with(check_tensor_name((check_tensor_id)id));
        check_result_free(got);
    }
}

static void what_was_not_written_fails(void **state) {
    (void)state;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        check_result *got = ideal(&plain);
        check_tensor *tensor = &got->tensor[id];
        size_t element = check_dtype_bytes(tensor->dtype);
        memset(tensor->data + (size_t)(tensor->count - 1) * element, 0xff, element);
        check_against_reference(&the_case, &batch, &plain, got);
        assert_failed_with("inf");
        check_result_free(got);
    }
}

static void one_bit_is_seen_and_named(void **state) {
    (void)state;
    check_result *a = ideal(&plain), *b = ideal(&plain);
    b->tensor[CHECK_DGATE].data[4 * (1 * 72 + 2 * 12 + 5)] ^= 1; /* expert 1, row 2, column 5 */
    check_same_bits(&the_case, a, b, "two");
    assert_failed_with("dgate[1][2][5]");
    b->tensor[CHECK_OUT].data[2 * (3 * 12 + 7) + 1] ^= 0x80; /* a sign */
    check_same_bits(&the_case, a, b, "two");
    assert_failed_with("out[3][7]");
    check_result_free(b);
    check_result_free(a);
}

static void zeros_are_exact(void **state) {
    (void)state;
    double want[2] = {0, 0}, got[2] = {0, 1e-30};
    check_tensor w = {FERRY_F64, {1, 1, 2}, 2, (unsigned char *)want},
                 g = {FERRY_F64, {1, 1, 2}, 2, (unsigned char *)got};
    int64_t worst;
    assert_true(check_error(&w, &w, 0, &worst) == 0);
    assert_true(isinf(check_error(&g, &w, 0, &worst)));
    assert_int_equal(worst, 1);
    got[1] = want[1] = NAN;
    assert_true(isinf(check_error(&g, &w, 0, &worst)));
    assert_true(check_error(&g, &w, 1, &worst) == 0);
    got[1] = 0;
    assert_true(isinf(check_error(&g, &w, 1, &worst)));
}

/* ---- Guards ---- */

static void make_shard(const check_way *way, check_shard *shard) {
    assert_true(check_shard_make(&the_case, &batch, way, 1, NULL, shard));
    assert_true(check_shard_untouched(shard));
}

static void gather(check_shard *shard, const check_way *way) {
    check_result *result = check_result_make(&the_case, &batch, way, 0);
    assert_non_null(result);
    check_shard_gather(shard, result);
    check_result_free(result);
    check_shard_free(shard);
}

static void an_untouched_shard_passes(void **state) {
    (void)state;
    for (int layout = CHECK_SEPARATE; layout <= CHECK_TABLE; layout++) {
        check_way way = {.ranks = 2, .layout = (check_layout)layout, .padded = 1, .ids_dtype = FERRY_I64};
        check_shard shard;
        make_shard(&way, &shard);
        check_shard_forget(&shard);
        gather(&shard, &way);
        assert_false(check_failed(&the_case));
    }
}

static void writing_beside_is_found(void **state) {
    (void)state;
    check_way way = {.ranks = 2, .layout = CHECK_TABLE, .padded = 1};
    check_shard shard;
    make_shard(&way, &shard);
    check_shard_forget(&shard);
    ((uint16_t *)shard.backward.dx)[12] = 0; /* in the gap behind the first row */
    gather(&shard, &way);
    assert_failed_with("beside a tensor");

    make_shard(&way, &shard);
    check_shard_forget(&shard);
    ((float *)shard.backward.dweights)[-1] = 0;
    gather(&shard, &way);
    assert_failed_with("beside a tensor");

    make_shard(&plain, &shard);
    check_shard_forget(&shard);
    ((float *)shard.backward.grads.down.to.base)[2 * 72] = 0; /* behind this rank's two experts */
    gather(&shard, &plain);
    assert_failed_with("beside a tensor");
}

static void writing_inputs_is_found(void **state) {
    (void)state;
    check_shard shard;
    make_shard(&plain, &shard);
    ((uint16_t *)(uintptr_t)shard.forward.x)[3] ^= 1;
    check_shard_forget(&shard);
    assert_failed_with("wrote to input");
    ((uint16_t *)shard.forward.params.down.base)[3] ^= 1;
    gather(&shard, &plain);
    assert_failed_with("wrote to input");

    make_shard(&plain, &shard);
    ((int32_t *)(uintptr_t)shard.forward.ids)[0]++;
    check_shard_forget(&shard);
    assert_failed_with("wrote to input");
    gather(&shard, &plain);
}

static void a_written_output_is_not_untouched(void **state) {
    (void)state;
    check_shard shard;
    make_shard(&plain, &shard);
    ((float *)shard.backward.grads.gate.to.base)[0] = 0;
    assert_false(check_shard_untouched(&shard));
    check_shard_free(&shard);
}

/* ---- Values ---- */

/* A token is the same whatever batch it is in, and slots without expert have no weight to read. */
static void tokens_do_not_move(void **state) {
    (void)state;
    check_problem later = small;
    check_batch part;
    later.first = 4;
    later.tokens = 3;
    assert_true(check_batch_make(&later, &part));
    assert_memory_equal(part.x, batch.x + 4 * 12, 3 * 12 * sizeof *part.x);
    assert_memory_equal(part.dout, batch.dout + 4 * 12, 3 * 12 * sizeof *part.dout);
    assert_memory_equal(part.ids, batch.ids + 4 * 2, 3 * 2 * sizeof *part.ids);
    assert_memory_equal(part.weights, batch.weights + 4 * 2, 3 * 2 * sizeof *part.weights);
    assert_memory_equal(part.gate, batch.gate, 4 * 6 * 12 * sizeof *part.gate);
    check_batch_free(&part);

    later.route = check_route_none;
    assert_true(check_batch_make(&later, &part));
    for (int i = 0; i < 6; i++) assert_true(isnan(part.weights[i]));
    assert_int_equal(part.bad_ids, 0);
    check_batch_free(&part);
}

static void values_have_unit_scale(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    enum { COUNT = 20000 };
    for (int i = 0; i < COUNT; i++) {
        double value = (double)check_unit(17, CHECK_X, i);
        assert_true(value == (double)check_widen(check_bf16((float)value)));
        sum += value;
        squares += value * value;
    }
    assert_true(fabs(sum / COUNT) < 0.03);
    assert_true(fabs(squares / COUNT - 1) < 0.03);
}

static void experts_are_placed_by_the_rule(void **state) {
    (void)state;
    const check_way six = {.ranks = 6};
    int counts[6] = {0}, last = 0;
    for (int64_t e = 0; e < 128; e++) {
        int rank = check_way_expert_rank(&six, 128, e);
        assert_true(rank >= last && rank < 6);
        counts[last = rank]++;
    }
    for (int r = 0; r < 6; r++) assert_int_equal(counts[r], r < 2 ? 22 : 21);
    const check_way five = {.ranks = 5};
    for (int64_t e = 0; e < 3; e++) assert_int_equal(check_way_expert_rank(&five, 3, e), e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_right_result_passes, setup, teardown),
        cmocka_unit_test_setup_teardown(every_tensor_is_compared, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_not_written_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(one_bit_is_seen_and_named, setup, teardown),
        cmocka_unit_test_setup_teardown(zeros_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(an_untouched_shard_passes, setup, teardown),
        cmocka_unit_test_setup_teardown(writing_beside_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(writing_inputs_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_written_output_is_not_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_do_not_move, setup, teardown),
        cmocka_unit_test_setup_teardown(values_have_unit_scale, setup, teardown),
        cmocka_unit_test_setup_teardown(experts_are_placed_by_the_rule, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
