/* SPDX-License-Identifier: Apache-2.0 */
/* RANK and WORLD_SIZE are those that the launch has set. */
#include "cli/check/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int check_meet(const check_case *c, int rank, const char *name, ferry_env_bootstrap **env, ferry_bootstrap *bootstrap) {
    setenv("FERRY_JOB", name, 1);
    ferry_status status = ferry_env_bootstrap_create(20 * check_patience(), env, bootstrap);
    return check_status(c, rank, status, FERRY_OK, "meeting under the same job name");
}

void check_job_name(char *to, size_t room) { snprintf(to, room, "ferry-check-%ld", (long)getpid()); }
