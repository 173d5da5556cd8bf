/* SPDX-License-Identifier: Apache-2.0 */
/* Processes: the thread that notices dead peers. */
#ifndef FERRY_COMM_MONITOR_H
#define FERRY_COMM_MONITOR_H

#include "comm/comm.h"

/* Collective; agreed on by all ranks. */
ferry_status fy_monitor_create(ferry_comm *comm);
/* Accepts a communicator without one. */
void fy_monitor_destroy(ferry_comm *comm);

#endif
