/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend can do on this machine, found once before the first test, and what that makes of problems and ways:
 * the same suites then run on every backend.
 */
#ifndef FERRY_CLI_CHECK_GPU_H
#define FERRY_CLI_CHECK_GPU_H

#include "cli/check/problem.h"
#include "cli/check/suite.h"

/* Fills options->devices and options->no_backward. 0 when the backend cannot be used; `why` says it then. */
int check_backend_find(check_options *options, char *why, size_t room);

/* A GPU's rows are multiples of 16 bytes; without a backward only the forward is run. */
void check_fit_problem(const check_options *options, check_problem *problem);
/* Processes need a GPU each, and have threads' way otherwise; symmetric allocations are host memory. */
void check_fit_way(const check_options *options, check_way *way);

#endif
