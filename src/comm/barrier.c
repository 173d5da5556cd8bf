/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier of callers: every rank counts the barriers that it entered in its own control block. */
#include "comm/control.h"

ferry_status ferry_barrier(ferry_comm *comm) {
    if (!comm) return fy_fail(FERRY_E_INVALID, "ferry_barrier: comm is NULL");
    FY_TRY(fy_fault_status(comm));
    uint64_t epoch = ++comm->barriers;
    atomic_store_explicit(&fy_control_of(comm, comm->rank)->barrier, epoch, memory_order_release);
    for (int r = 0; r < comm->nranks; r++)
        FY_TRY(fy_wait_at_least(comm, &fy_control_of(comm, r)->barrier, epoch, FERRY_PHASE_COUNT, r, "its barrier",
                                comm->config.enter_timeout_s));
    return FERRY_OK;
}
