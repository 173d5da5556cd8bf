/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors from every rank to every rank of one machine: sockets carry what the bootstrap's bytes cannot. */
#ifndef FERRY_CUDA_HANDLES_H
#define FERRY_CUDA_HANDLES_H

#include "comm/comm.h"

/* Collective. Gives `mine` to all peers; fds[r] is rank r's (a descriptor of this process, the caller closes it), -1
 * for this rank itself. On failure nothing stays open. Not agreed on: the caller agrees. */
ferry_status fy_exchange_handles(ferry_comm *comm, int mine, int *fds);

#endif
