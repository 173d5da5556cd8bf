/* SPDX-License-Identifier: Apache-2.0 */
/* Collective steps of create calls, through the bootstrap's all-gather. */
#include "comm/comm.h"

#include "comm/bootstrap.h"

#include <stdio.h>

ferry_status fy_bootstrap_allgather(const ferry_bootstrap *bootstrap, const void *mine, void *all, size_t bytes) {
    int code = bootstrap->allgather(bootstrap->user, mine, all, bytes);
    if (code == 0) return FERRY_OK;
    if (bootstrap->allgather == fy_thread_allgather || bootstrap->allgather == fy_env_allgather)
        return (ferry_status)code;
    return fy_fail(FERRY_E_PEER, "rank %d of %d: the bootstrap's all-gather of %zu bytes returned %d, expected 0",
                   bootstrap->rank, bootstrap->nranks, bytes, code);
}

ferry_status fy_bootstrap_agree(const ferry_bootstrap *bootstrap, ferry_status mine, const char *doing) {
    char sentence[1024];
    int32_t own = mine, all[FY_MAX_RANKS];
    snprintf(sentence, sizeof sentence, "%s", ferry_last_error());
    ferry_status status = fy_bootstrap_allgather(bootstrap, &own, all, sizeof own);
    /* A rank that failed says so, whatever became of the all-gather. */
    if (mine != FERRY_OK) return fy_fail(mine, "%s", sentence);
    FY_TRY(status);
    for (int r = 0; r < bootstrap->nranks; r++)
        if (all[r] != FERRY_OK)
            return fy_fail(FERRY_E_PEER, "%s: rank %d failed with %s (%s), seen by rank %d", doing, r,
                           ferry_status_name((ferry_status)all[r]), ferry_status_text((ferry_status)all[r]),
                           bootstrap->rank);
    return FERRY_OK;
}

ferry_status fy_allgather(ferry_comm *comm, const void *mine, void *all, size_t bytes) {
    return fy_bootstrap_allgather(&comm->config.bootstrap, mine, all, bytes);
}

ferry_status fy_agree(ferry_comm *comm, ferry_status mine, const char *doing) {
    return fy_bootstrap_agree(&comm->config.bootstrap, mine, doing);
}
