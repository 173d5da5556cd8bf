/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between processes: what a peer sees of it, and sentences for what cannot be had. */
#include "comm/segment.h"
#include "said.h"

#include <stdint.h>

static const size_t bytes = 10000;

static void test_seen_by_peers(void **state) {
    (void)state;
    char name[FY_SEGMENT_NAME], second_name[FY_SEGMENT_NAME];
    unsigned char *mine = NULL, *theirs = NULL, *second = NULL;
    assert_int_equal(fy_segment_create(bytes, "a test", name, &mine), FERRY_OK);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(mine[i], 0);
    assert_int_equal(fy_segment_open(name, bytes, "a test", &theirs), FERRY_OK);
    assert_ptr_not_equal(mine, theirs);
    mine[bytes - 1] = 77;
    assert_int_equal(theirs[bytes - 1], 77);

    assert_int_equal(fy_segment_create(bytes, "a test", second_name, &second), FERRY_OK);
    assert_string_not_equal(name, second_name);
    assert_int_equal(second[bytes - 1], 0);

    fy_segment_unlink(name);
    theirs[0] = 5; /* mappings stay */
    assert_int_equal(mine[0], 5);
    fy_segment_unlink(second_name);
    fy_segment_unmap(second, bytes);
    fy_segment_unmap(theirs, bytes);
    fy_segment_unmap(mine, bytes);
}

static void test_refused(void **state) {
    (void)state;
    char name[FY_SEGMENT_NAME];
    unsigned char *mine = NULL, *theirs = NULL;
    assert_said(fy_segment_create((size_t)PTRDIFF_MAX + 1, "a test", name, &mine), FERRY_E_MEMORY,
                "any process can map");
    assert_said(fy_segment_create((size_t)1 << 50, "a test", name, &mine), FERRY_E_MEMORY, "make /dev/shm larger");
    assert_null(mine);
    assert_said(fy_segment_open("/ferry-nobody-has-this", bytes, "a test", &theirs), FERRY_E_SYSTEM,
                "do all ranks see one /dev/shm?");

    assert_int_equal(fy_segment_create(bytes, "a test", name, &mine), FERRY_OK);
    assert_said(fy_segment_open(name, 100 * bytes, "a test", &theirs), FERRY_E_SYSTEM, "is not what it announced");
    assert_null(theirs);
    fy_segment_unlink(name);
    assert_said(fy_segment_open(name, bytes, "a test", &theirs), FERRY_E_SYSTEM, name);
    fy_segment_unmap(mine, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_by_peers),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
