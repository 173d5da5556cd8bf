/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes under a job name of the test's own, for tests that start the same job again. */
#ifndef FERRY_CLI_CHECK_JOB_H
#define FERRY_CLI_CHECK_JOB_H

#include "cli/check/session.h"

/* In a rank that is a process: meets its peers again, under `name`. 0 after a check_fail. */
int check_meet(const check_case *c, int rank, const char *name, ferry_env_bootstrap **env, ferry_bootstrap *bootstrap);
/* A name that no other test uses at the same time. */
void check_job_name(char *to, size_t room);

#endif
