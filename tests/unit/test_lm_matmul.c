/* SPDX-License-Identifier: Apache-2.0 */
/* The dense product: the very bits of a plain loop, from every kind of tile of every instruction set. It takes the
 * source in, to reach the sets that the processor would not choose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lm/matmul.c"
#include "lm/random.h"

#include <math.h>
#include <stdio.h>

enum { MOST_ROWS = 9, MOST_COLUMNS = 77, MOST_DEPTH = 13 };

typedef void product_function(const product *t);

static void chosen_product(const product *t) {
    lm_matmul(t->c, t->c_row, t->a, t->a_row, t->a_column, t->b, t->b_row, t->rows, t->columns, t->depth, t->add);
}

static void fill(float *to, int64_t count, uint32_t purpose) {
    for (int64_t i = 0; i < count; i++) to[i] = lm_random_normal(7, purpose, (uint64_t)i);
}

static void check(product_function *function, int64_t rows, int64_t columns, int64_t depth, int add, int turned) {
    static float a[MOST_ROWS * MOST_DEPTH], b[MOST_DEPTH * MOST_COLUMNS];
    static float c[MOST_ROWS * MOST_COLUMNS], wanted[MOST_ROWS * MOST_COLUMNS];
    product t = {c, a, b, columns, turned ? 1 : depth, turned ? rows : 1, columns, rows, columns, depth, add};
    fill(a, rows * depth, 1);
    fill(b, depth * columns, 2);
    fill(c, rows * columns, 3);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            float sum = add ? c[i * columns + j] : 0;
            for (int64_t p = 0; p < depth; p++) {
                volatile float term = a[i * t.a_row + p * t.a_column] * b[p * columns + j];
                sum += term;
            }
            wanted[i * columns + j] = sum;
        }
    }
    for (int64_t i = 0; i < rows * columns && !add; i++) c[i] = NAN;
    function(&t);
    assert_memory_equal(c, wanted, (size_t)(rows * columns) * sizeof(float));
}

static void check_all(product_function *function) {
    static const int64_t columns[] = {1, 3, 4, 7, 8, 9, 15, 16, 24, 31, 32, 33, 47, 64, 77};
    for (size_t n = 0; n < sizeof columns / sizeof *columns; n++) {
        for (int64_t rows = 1; rows <= MOST_ROWS; rows++)
            check(function, rows, columns[n], MOST_DEPTH, (int)(rows & 1), (int)(rows >> 1 & 1));
    }
    check(function, 3, 5, 0, 0, 0);
    check(function, 3, 5, 0, 1, 0);
}

static void test_chosen(void **state) {
    (void)state;
    check_all(chosen_product);
}

static void test_plain(void **state) {
    (void)state;
    check_all(plain_product);
}

#if defined(__x86_64__)
static void test_avx2(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2")) skip();
    check_all(avx2_product);
}

static void test_avx512(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx512f")) skip();
    check_all(avx512_product);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_plain),
#if defined(__x86_64__)
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
