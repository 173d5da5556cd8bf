/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs tests one after the other in one process, for backends whose start takes longer than a test. A test that fails,
 * crashes or hangs ends the process; the next one gets a fresh one.
 */
#ifndef FERRY_CLI_CHECK_WORKER_H
#define FERRY_CLI_CHECK_WORKER_H

#include "cli/check/runner.h"

#include <sys/types.h>

typedef struct check_worker {
    const check_list *list;
    const check_options *options;
    pid_t pid;              /* 0: no process */
    int requests, answers;  /* ends of pipes */
    check_verdict *verdict; /* shared with the process */
} check_worker;

/* Test `index` of the list, as check_run_test would; one that needs a process of its own gets it. */
void check_worker_run(check_worker *worker, size_t index, check_outcome *outcome);
void check_worker_stop(check_worker *worker);

#endif
