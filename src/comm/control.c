/* SPDX-License-Identifier: Apache-2.0 */
/* Faults: one rank finds one, every rank gets the record and its abort word. */
#include "comm/control.h"

#include <stdio.h>

ferry_status fy_control_create(ferry_comm *comm) {
    size_t bytes = sizeof(fy_control) + (size_t)comm->nranks * sizeof(fy_fault);
    return fy_symmetric_create(comm, bytes, "the control block", &comm->control);
}

int fy_aborted(ferry_comm *comm) {
    _Atomic uint32_t *word = &fy_control_of(comm, comm->rank)->abort;
    return atomic_load_explicit(word, memory_order_relaxed) != 0 &&
           atomic_load_explicit(word, memory_order_acquire) != 0;
}

void fy_raise(ferry_comm *comm, const fy_fault *fault) {
    /* Whoever comes second waits until the first one's fault stands everywhere, and so finds it. */
    pthread_mutex_lock(&comm->raise_lock);
    for (int r = 0; r < comm->nranks && !comm->raised; r++) {
        fy_control *control = fy_control_of(comm, r);
        uint32_t none = 0;
        control->faults[comm->rank] = *fault;
        atomic_compare_exchange_strong_explicit(&control->abort, &none, (uint32_t)comm->rank + 1, memory_order_acq_rel,
                                                memory_order_acquire);
    }
    comm->raised = 1;
    pthread_mutex_unlock(&comm->raise_lock);
}

void fy_control_leave(ferry_comm *comm) {
    fy_control *control = fy_control_of(comm, comm->rank);
    /* A rank that leaves because of a fault passes it on first, so nobody takes its leaving for the cause. */
    uint32_t word = atomic_load_explicit(&control->abort, memory_order_acquire);
    if (word > 0 && word <= (uint32_t)comm->nranks) fy_raise(comm, &control->faults[word - 1]);
    atomic_store_explicit(&control->left, 1, memory_order_release);
}

const char *fy_phase_name(int phase) {
    switch (phase) {
#define PHASE_NAME(NAME, name)                                                                                         \
    case FERRY_PHASE_##NAME:                                                                                           \
        return #name;
        FERRY_PHASE_MAP(PHASE_NAME)
#undef PHASE_NAME
    default:
        return "none";
    }
}

ferry_status fy_fault_status(ferry_comm *comm) {
    fy_control *control = fy_control_of(comm, comm->rank);
    uint32_t word = atomic_load_explicit(&control->abort, memory_order_acquire);
    if (word == 0) return FERRY_OK;
    if (word > (uint32_t)comm->nranks)
        return fy_fail(FERRY_E_INTERNAL, "rank %d: its abort word holds %u, expected 0..%d", comm->rank, word,
                       comm->nranks);
    const fy_fault *fault = &control->faults[word - 1];
    char counts[64] = "", waited[32] = "", source[64] = "";
    if (fault->expected >= 0)
        snprintf(counts, sizeof counts, ", expected %lld, seen %lld", (long long)fault->expected,
                 (long long)fault->seen);
    if (fault->status == FERRY_E_TIMEOUT) snprintf(waited, sizeof waited, " %g s", fault->waited_s);
    if (fault->waiting_rank != comm->rank)
        snprintf(source, sizeof source, " (rank %d found it and told rank %d)", fault->waiting_rank, comm->rank);
    return fy_fail((ferry_status)fault->status,
                   "phase %s: rank %d waited%s for rank %d: %.*s%s%s; the communicator can only be destroyed",
                   fy_phase_name(fault->phase), fault->waiting_rank, waited, fault->awaited_rank,
                   (int)sizeof fault->what, fault->what, counts, source);
}

ferry_status ferry_comm_error(ferry_comm *comm) {
    if (!comm) return fy_fail(FERRY_E_INVALID, "ferry_comm_error: comm is NULL");
    return fy_fault_status(comm);
}
