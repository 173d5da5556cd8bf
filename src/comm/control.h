/* SPDX-License-Identifier: Apache-2.0 */
/* The control block: what ranks tell each other about their life. The first symmetric block of a communicator. */
#ifndef FERRY_COMM_CONTROL_H
#define FERRY_COMM_CONTROL_H

#include "comm/comm.h"

/* One rank's part. */
typedef struct fy_control {
    /* 0, or 1 + the rank whose record in `faults` ended this rank's communicator. Written once, by compare-exchange
     * after the record is complete, so a rank that dies while raising never leaves a half-made fault. */
    _Alignas(64) _Atomic uint32_t abort;
    _Alignas(64) _Atomic uint32_t left;      /* the owner has destroyed its communicator */
    _Alignas(64) _Atomic uint64_t heartbeat; /* counts up while the owner's monitor runs */
    _Alignas(64) _Atomic uint64_t barrier;   /* barriers that the owner has entered */
    _Alignas(64) fy_fault faults[];          /* [nranks] record q is written by rank q alone, once */
} fy_control;

static inline fy_control *fy_control_of(const ferry_comm *comm, int rank) {
    return (fy_control *)comm->control->base[rank];
}

/* Collective. */
ferry_status fy_control_create(ferry_comm *comm);
/* Says to peers that this rank waits for nobody and will answer nobody any more. */
void fy_control_leave(ferry_comm *comm);

#endif
