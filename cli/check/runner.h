/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one test in a child process under a watchdog. */
#ifndef FERRY_CLI_CHECK_RUNNER_H
#define FERRY_CLI_CHECK_RUNNER_H

#include "cli/check/suite.h"

typedef struct check_outcome {
    check_state state;
    double seconds;
    char text[4096]; /* why it failed or was skipped, or what it notes */
} check_outcome;

/* Call it from a process without threads. Nothing that the test started is left when it returns. */
void check_run_test(const check_test *test, const check_options *options, check_outcome *outcome);

#endif
