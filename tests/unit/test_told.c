/* SPDX-License-Identifier: Apache-2.0 */
/* What was told last: the same bytes, other bytes in any part, other sizes, forgotten. */
#include "core/told.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static int again(fy_told *told, char *first, size_t first_size, int *second) {
    void *const part[] = {first, second};
    const size_t size[] = {first_size, sizeof *second};
    return fy_told_again(told, part, size, 2);
}

static void test_told(void **state) {
    (void)state;
    fy_told told = {NULL, 0};
    char text[] = "arguments of a kernel";
    int number = 7;
    assert_false(again(&told, text, sizeof text, &number));
    assert_true(again(&told, text, sizeof text, &number));
    for (size_t i = 0; i < sizeof text; i++) { /* each byte counts, and is told the next time */
        text[i] ^= 1;
        assert_false(again(&told, text, sizeof text, &number));
        assert_true(again(&told, text, sizeof text, &number));
    }
    number = 8;
    assert_false(again(&told, text, sizeof text, &number));
    assert_true(again(&told, text, sizeof text, &number));
    char elsewhere[sizeof text];
    memcpy(elsewhere, text, sizeof text);
    assert_true(again(&told, elsewhere, sizeof elsewhere, &number));
    assert_false(again(&told, text, 3, &number));
    assert_true(again(&told, text, 3, &number));
    assert_false(again(&told, text, sizeof text, &number));
    fy_told_forget(&told);
    assert_null(told.bytes);
    assert_false(again(&told, text, sizeof text, &number));
    assert_true(again(&told, text, sizeof text, &number));
    fy_told_forget(&told);
    fy_told_forget(&told);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
