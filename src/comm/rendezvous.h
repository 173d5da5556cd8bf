/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes of a job find each other on one machine: rank 0 is the hub of an abstract Unix socket. */
#ifndef FERRY_COMM_RENDEZVOUS_H
#define FERRY_COMM_RENDEZVOUS_H

#include "core/status.h"

typedef struct fy_rendezvous {
    int rank, nranks;
    double timeout_s;
    const char *job;
    uint64_t nonce; /* out: of this start, the same on all ranks */
    int *sockets;   /* out: [nranks], -1 where there is none. Rank 0: one per other rank; others: sockets[0] */
} fy_rendezvous;

/* Collective. On failure every socket is closed and -1. */
ferry_status fy_rendezvous_meet(fy_rendezvous *meeting);

#endif
