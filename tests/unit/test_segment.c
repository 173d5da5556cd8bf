/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between processes: what a peer sees of it, and sentences for what cannot be had. */
#include "comm/segment.h"
#include "said.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t bytes = 10000;

static void test_seen_by_peers(void **state) {
    (void)state;
    fy_named_segment first, another;
    unsigned char *mine = NULL, *theirs = NULL, *second = NULL;
    assert_int_equal(fy_segment_create(bytes, "a test", &first, &mine), FERRY_OK);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(mine[i], 0);
    assert_int_equal(fy_segment_open(first.name, bytes, "a test", &theirs), FERRY_OK);
    assert_ptr_not_equal(mine, theirs);
    mine[bytes - 1] = 77;
    assert_int_equal(theirs[bytes - 1], 77);

    assert_int_equal(fy_segment_create(bytes, "a test", &another, &second), FERRY_OK);
    assert_string_not_equal(first.name, another.name);
    assert_int_equal(second[bytes - 1], 0);

    fy_segment_unlink(&first);
    theirs[0] = 5; /* mappings stay */
    assert_int_equal(mine[0], 5);
    fy_segment_unlink(&another);
    fy_segment_unmap(second, bytes);
    fy_segment_unmap(theirs, bytes);
    fy_segment_unmap(mine, bytes);
}

static void test_refused(void **state) {
    (void)state;
    fy_named_segment first;
    unsigned char *mine = NULL, *theirs = NULL;
    assert_said(fy_segment_create((size_t)PTRDIFF_MAX + 1, "a test", &first, &mine), FERRY_E_MEMORY,
                "any process can map");
    assert_said(fy_segment_create((size_t)1 << 50, "a test", &first, &mine), FERRY_E_MEMORY, "make /dev/shm larger");
    assert_null(mine);
    assert_said(fy_segment_open("/ferry-nobody-has-this", bytes, "a test", &theirs), FERRY_E_SYSTEM,
                "do all ranks see one /dev/shm?");

    assert_int_equal(fy_segment_create(bytes, "a test", &first, &mine), FERRY_OK);
    assert_said(fy_segment_open(first.name, 100 * bytes, "a test", &theirs), FERRY_E_SYSTEM,
                "is not what it announced");
    assert_null(theirs);
    fy_segment_unlink(&first);
    assert_said(fy_segment_open(first.name, bytes, "a test", &theirs), FERRY_E_SYSTEM, first.name);
    fy_segment_unmap(mine, bytes);
}

/* A name stays while its process lives and may be taken away once it is dead. */
static void test_left_by_a_crash(void **state) {
    (void)state;
    fy_named_segment alive, dead;
    unsigned char *mine = NULL, *theirs = NULL;
    int told[2];
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        int made = fy_segment_create(bytes, "a test", &dead, &theirs) == FERRY_OK;
        _exit(!(made && write(told[1], dead.name, sizeof dead.name) == (ssize_t)sizeof dead.name));
    }
    assert_int_equal(read(told[0], dead.name, sizeof dead.name), sizeof dead.name);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(fy_segment_create(bytes, "a test", &alive, &mine), FERRY_OK);
    fy_segment_sweep(3600); /* too young */
    assert_int_equal(fy_segment_open(dead.name, bytes, "a test", &theirs), FERRY_OK);
    fy_segment_unmap(theirs, bytes);
    fy_segment_sweep(0);
    assert_said(fy_segment_open(dead.name, bytes, "a test", &theirs), FERRY_E_SYSTEM, dead.name);
    assert_int_equal(fy_segment_open(alive.name, bytes, "a test", &theirs), FERRY_OK);
    fy_segment_unmap(theirs, bytes);
    fy_segment_unlink(&alive);
    fy_segment_unmap(mine, bytes);
    close(told[0]);
    close(told[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_by_peers),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_left_by_a_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
