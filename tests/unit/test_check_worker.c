/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that share a process: each has its own outcome, whatever the others did to the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "cli/check/worker.h"
#include "endings.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ran; /* tests in this process */

static void notes_its_place(const check_case *c) { check_note(c, "%d", ++ran); }

static void fails(const check_case *c) { check_fail(c, "wrong"); }

/* As a test whose ranks are processes does. */
static void wants_to_be_alone(const check_case *c) {
    if (c->options->together) {
        atomic_store(&c->verdict->alone, 1);
        check_fail(c, "not here");
    } else {
        check_note(c, "alone");
    }
}

static check_list list;

static void outcomes(void **state) {
    static check_body *const enders[] = {fails, crashes, exits, hangs};
    static const char *const texts[] = {"wrong", "ended (signal 11)", "ended", "still running"};
    const check_options options = {0};
    check_worker worker;
    (void)state;
    /* A process reads the list that it was started with, so all tests come first. */
    for (size_t i = 0; i < sizeof enders / sizeof *enders; i++) {
        check_list_free(&list);
        check_body *const order[] = {notes_its_place, skips,     notes_its_place, wants_to_be_alone,
                                     notes_its_place, enders[i], notes_its_place};
        for (size_t t = 0; t < sizeof order / sizeof *order; t++)
            check_add(&list, "suite", 1, order[t], NULL, "%zu", t);
        worker = (check_worker){.list = &list, .options = &options};
        check_outcome got[7];
        for (size_t t = 0; t < 7; t++) check_worker_run(&worker, t, &got[t]);
        check_worker_stop(&worker);
        assert_int_equal(got[0].state, CHECK_PASSED);
        assert_string_equal(got[0].text, "1");
        assert_int_equal(got[1].state, CHECK_SKIPPED);
        assert_string_equal(got[1].text, "not here");
        assert_string_equal(got[2].text, "2"); /* the same process */
        assert_int_equal(got[3].state, CHECK_PASSED);
        assert_string_equal(got[3].text, "alone");
        assert_string_equal(got[4].text, "3");
        assert_int_equal(got[5].state, CHECK_FAILED);
        assert_non_null(strstr(got[5].text, texts[i]));
        assert_int_equal(got[6].state, CHECK_PASSED);
        assert_string_equal(got[6].text, "1"); /* a fresh one */
    }
    check_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(outcomes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
