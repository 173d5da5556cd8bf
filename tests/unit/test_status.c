/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of statuses, the sentence of the last failure, the version, and counted allocation. */
#include "core/memory.h"
#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_names(void **state) {
    (void)state;
    assert_string_equal(ferry_status_name(FERRY_OK), "FERRY_OK");
    assert_string_equal(ferry_status_name(FERRY_E_TIMEOUT), "FERRY_E_TIMEOUT");
    assert_string_equal(ferry_status_text(FERRY_E_TIMEOUT), "a wait passed its deadline");
#define EXPECT_NAME(name, number, text)                                                                                \
    assert_int_equal(FERRY_##name, number);                                                                            \
    assert_string_equal(ferry_status_name((ferry_status)number), "FERRY_" #name);                                      \
    assert_string_equal(ferry_status_text((ferry_status)number), text);
    FERRY_STATUS_MAP(EXPECT_NAME)
#undef EXPECT_NAME
    for (int unknown = -1; unknown < 100; unknown += 5) {
        assert_non_null(ferry_status_name((ferry_status)unknown));
        assert_non_null(ferry_status_text((ferry_status)unknown));
    }
    assert_string_equal(ferry_status_name((ferry_status)12345), "FERRY_UNKNOWN_STATUS");
}

static void test_version(void **state) {
    (void)state;
    char text[32];
    int number = FERRY_VERSION_MAJOR * 10000 + FERRY_VERSION_MINOR * 100 + FERRY_VERSION_PATCH;
    snprintf(text, sizeof text, "%d.%d.%d", FERRY_VERSION_MAJOR, FERRY_VERSION_MINOR, FERRY_VERSION_PATCH);
    assert_string_equal(ferry_version(), text);
    assert_int_equal(ferry_version_number(), number);
}

static void *other_thread(void *argument) {
    *(int *)argument = strcmp(ferry_last_error(), "") == 0 && fy_fail(FERRY_E_STATE, "theirs") == FERRY_E_STATE &&
                       strcmp(ferry_last_error(), "theirs") == 0;
    return NULL;
}

static void test_last_error(void **state) {
    (void)state;
    assert_string_equal(ferry_last_error(), "");
    assert_int_equal(fy_fail(FERRY_E_INVALID, "rows is %d", 7), FERRY_E_INVALID);
    assert_string_equal(ferry_last_error(), "rows is 7");
    pthread_t thread;
    int right = 0;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &right), 0);
    pthread_join(thread, NULL);
    assert_true(right);
    assert_string_equal(ferry_last_error(), "rows is 7");
    /* A sentence may contain the one before. */
    fy_fail(FERRY_E_PEER, "because %s", ferry_last_error());
    assert_string_equal(ferry_last_error(), "because rows is 7");
    char *long_text = malloc(100000);
    memset(long_text, 'x', 99999);
    long_text[99999] = 0;
    fy_fail(FERRY_E_PEER, "%s", long_text);
    assert_in_range(strlen(ferry_last_error()), 500, 99998);
    free(long_text);
}

static ferry_status tries(ferry_status status, int *after) {
    *after = 0;
    FY_TRY(status);
    *after = 1;
    return FERRY_OK;
}

static void test_try(void **state) {
    (void)state;
    int after;
    assert_int_equal(tries(FERRY_OK, &after), FERRY_OK);
    assert_true(after);
    assert_int_equal(tries(FERRY_E_CUDA, &after), FERRY_E_CUDA);
    assert_false(after);
}

/* ---- Memory ---- */

static size_t given, taken;

static void *dirty_alloc(void *user, size_t bytes, size_t align) {
    void *memory = NULL;
    if (*(int *)user) return NULL;
    assert_true(align >= 64);
    given += bytes;
    if (posix_memalign(&memory, align, bytes) != 0) return NULL;
    memset(memory, 0xab, bytes);
    return memory;
}

static void dirty_free(void *user, void *memory, size_t bytes) {
    (void)user;
    taken += bytes;
    free(memory);
}

static void test_memory(void **state) {
    (void)state;
    int refuse = 0;
    const ferry_allocator hooks = {dirty_alloc, dirty_free, &refuse};
    fy_memory memory;
    for (int round = 0; round < 2; round++) {
        unsigned char *a = NULL, *b = NULL;
        fy_memory_init(&memory, round ? &hooks : NULL);
        assert_int_equal(fy_alloc(&memory, 1000, "a", (void **)&a), FERRY_OK);
        assert_int_equal(fy_alloc(&memory, 1, "b", (void **)&b), FERRY_OK);
        assert_int_equal((uintptr_t)a % 64 + (uintptr_t)b % 64, 0);
        for (int i = 0; i < 1000; i++) assert_int_equal(a[i], 0);
        assert_int_equal(atomic_load(&memory.current), 1001);
        fy_memory_count(&memory, 500);
        fy_free(&memory, a, 1000);
        fy_memory_count(&memory, -500);
        assert_int_equal(atomic_load(&memory.current), 1);
        assert_int_equal(atomic_load(&memory.peak), 1501);
        fy_free(&memory, b, 1);
        fy_free(&memory, NULL, 100);
        assert_int_equal(atomic_load(&memory.current), 0);

        void *nothing = &memory;
        assert_int_equal(fy_alloc(&memory, 0, "nothing", &nothing), FERRY_OK);
        assert_null(nothing);
        nothing = &memory;
        assert_int_equal(fy_alloc(&memory, SIZE_MAX, "too much", &nothing), FERRY_E_MEMORY);
        assert_ptr_equal(nothing, &memory);
        assert_non_null(strstr(ferry_last_error(), "too much"));
    }
    refuse = 1;
    void *block = NULL;
    assert_int_equal(fy_alloc(&memory, 77, "the ring", &block), FERRY_E_MEMORY);
    assert_non_null(strstr(ferry_last_error(), "the ring"));
    assert_non_null(strstr(ferry_last_error(), "77"));
    assert_int_equal(atomic_load(&memory.current), 0);
    assert_int_equal(given, 1001);
    assert_int_equal(taken, 1001);
}

/* Many threads at once: the sum is right and the peak is at least what one of them held. */
static void *allocates(void *argument) {
    for (int i = 0; i < 1000; i++) {
        void *block = NULL;
        if (fy_alloc(argument, 64, "a block", &block) != FERRY_OK) return argument;
        fy_free(argument, block, 64);
    }
    return NULL;
}

static void test_memory_threads(void **state) {
    (void)state;
    fy_memory memory;
    pthread_t threads[4];
    fy_memory_init(&memory, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, allocates, &memory), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(atomic_load(&memory.current), 0);
    assert_in_range(atomic_load(&memory.peak), 64, 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_error), /* first: nothing has failed yet */
        cmocka_unit_test(test_names),      cmocka_unit_test(test_version),        cmocka_unit_test(test_try),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_memory_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
