/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that end in every way a test can, for the runner and the worker of `ferry check`. */
#ifndef FERRY_TESTS_ENDINGS_H
#define FERRY_TESTS_ENDINGS_H

#include "cli/check/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void skips(const check_case *c) { check_skip(c, "not here"); }

static void crashes(const check_case *c) {
    (void)c;
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would explain it */
    raise(SIGSEGV);
}

static void exits(const check_case *c) {
    (void)c;
    exit(3);
}

static void hangs(const check_case *c) {
    (void)c;
    for (;;) pause();
}

#endif
