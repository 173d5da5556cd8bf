/* SPDX-License-Identifier: Apache-2.0 */
/* The runner of `ferry check`: whatever a test does, it ends as one outcome; and the list holds every case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "cli/check/runner.h"
#include "cli/check/session.h"
#include "endings.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void passes(const check_case *c) { check_note(c, "all %s", "well"); }

static void fails_twice(const check_case *c) {
    fprintf(stderr, "what the log says\n");
    check_fail(c, "first %d", 1);
    check_fail(c, "second %d", 2);
}

/* Leaves a process behind that holds the write end of the argument's pipe. */
static void leaves_a_child(const check_case *c) {
    (void)c;
    if (fork() == 0) {
        for (;;) pause();
    }
}

static check_outcome run(check_body *body, double limit_s) {
    const check_test test = {"suite", "name", limit_s, body, NULL};
    const check_options options = {0};
    check_outcome outcome;
    check_run_test(&test, &options, &outcome);
    return outcome;
}

static void outcomes(void **state) {
    (void)state;
    check_outcome outcome = run(passes, 10);
    assert_int_equal(outcome.state, CHECK_PASSED);
    assert_string_equal(outcome.text, "all well");

    outcome = run(fails_twice, 10);
    assert_int_equal(outcome.state, CHECK_FAILED);
    assert_string_equal(outcome.text, "first 1\nwhat the log says");

    outcome = run(skips, 10);
    assert_int_equal(outcome.state, CHECK_SKIPPED);
    assert_string_equal(outcome.text, "not here");

    outcome = run(crashes, 10);
    assert_int_equal(outcome.state, CHECK_FAILED);
    assert_non_null(strstr(outcome.text, "signal 11"));

    outcome = run(exits, 10);
    assert_int_equal(outcome.state, CHECK_FAILED);
    assert_non_null(strstr(outcome.text, "exit code 3"));
}

static void a_hang_is_ended(void **state) {
    (void)state;
    check_outcome outcome = run(hangs, 0.1);
    assert_int_equal(outcome.state, CHECK_FAILED);
    assert_non_null(strstr(outcome.text, "still running"));
    assert_true(outcome.seconds < 10);
}

static void nothing_outlives_a_test(void **state) {
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    check_outcome outcome = run(leaves_a_child, 10);
    assert_int_equal(outcome.state, CHECK_PASSED);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* end of file: nobody has the other end any more */
    close(ends[0]);
}

/* A rank that ends by itself fails its test, with threads and with processes. */
static void ends_early(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    (void)job, (void)bootstrap;
    if (rank == 1) _exit(5);
}

static void launches(const check_case *c) {
    const check_way way = {.ranks = 2, .processes = 1};
    const check_job job = {c, NULL, &way, NULL, NULL};
    check_launch(&job, ends_early, 0);
}

static void a_lost_rank_fails_its_test(void **state) {
    (void)state;
    check_outcome outcome = run(launches, 30);
    assert_int_equal(outcome.state, CHECK_FAILED);
    assert_non_null(strstr(outcome.text, "exit code 5"));
}

/* ---- The list ---- */

static void fill(check_list *list, const check_options *options) {
#define FILL(name) check_suite_##name(list, options);
    CHECK_SUITES(FILL)
#undef FILL
}

static void every_case_is_there(void **state) {
    (void)state;
    enum { CASES = 44 };
    const check_options options = {.seed = 1, .long_tier = 1, .cases = 1};
    check_list list = {0};
    int found[CASES + 1] = {0};
    fill(&list, &options);
    for (size_t i = 0; i < list.count; i++) {
        const char *at = strstr(list.tests[i].name, "case ");
        int number = at ? atoi(at + 5) : 0;
        if (number >= 1 && number <= CASES) found[number] = 1;
        assert_true(list.tests[i].limit_s > 0);
    }
    for (int number = 1; number <= CASES; number++) {
        if (!found[number]) fail_msg("case %d is nowhere", number);
    }
    check_list_free(&list);
}

static void names_are_distinct(void **state) {
    (void)state;
    const check_options options = {.seed = 1, .long_tier = 1, .cases = 50};
    check_list list = {0};
    fill(&list, &options);
    for (size_t i = 0; i < list.count; i++) {
        for (size_t j = i + 1; j < list.count; j++) {
            if (strcmp(list.tests[i].suite, list.tests[j].suite) != 0) continue;
            assert_string_not_equal(list.tests[i].name, list.tests[j].name);
        }
    }
    check_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outcomes),
        cmocka_unit_test(a_hang_is_ended),
        cmocka_unit_test(nothing_outlives_a_test),
        cmocka_unit_test(a_lost_rank_fails_its_test),
        cmocka_unit_test(every_case_is_there),
        cmocka_unit_test(names_are_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
