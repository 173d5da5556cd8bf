/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of a CPU communicator: threads that run one job together and sleep in between. */
#ifndef FERRY_CPU_POOL_H
#define FERRY_CPU_POOL_H

#include "core/memory.h"
#include "core/status.h"

typedef struct fy_pool fy_pool;

/* E_SYSTEM when a thread cannot be started; nothing is left then. */
ferry_status fy_pool_create(fy_memory *memory, int workers, fy_pool **pool);
/* Ends and joins the workers. Accepts NULL. */
void fy_pool_destroy(fy_pool *pool);
/* job(argument, worker) on every worker; returns when all have returned: the number that returned non-zero. */
int fy_pool_run(fy_pool *pool, int (*job)(void *argument, int worker), void *argument);

#endif
