/* SPDX-License-Identifier: Apache-2.0 */
/* All-gathers of GPU memory across nodes by NCCL, which is found at run time: libnccl.so.2 where the system's loader
 * looks (LD_LIBRARY_PATH). */
#ifndef FERRY_LM_OUTER_NCCL_H
#define FERRY_LM_OUTER_NCCL_H

#include "ferry/ferry.h"

#include <stddef.h>

typedef struct lm_nccl lm_nccl;

/* "2.27.3" in `to`; 0 when there is none, with the reason in `to`. */
int lm_nccl_find(char *to, size_t room);

/* Collective across nodes, each with a GPU of its own: the calling thread's current one. 0, or -1 with lm_error(). */
int lm_nccl_create(const ferry_bootstrap *across, lm_nccl **nccl);
void lm_nccl_destroy(lm_nccl *nccl);
/* Ends gathers that wait for a node, from any thread: what they were to write is undefined, and no other will be made.
 */
void lm_nccl_abort(lm_nccl *nccl);

/* Collective, in the order of `stream`. Every node's `bytes` bytes into all[nodes * bytes]. */
int lm_nccl_gather(lm_nccl *nccl, const void *mine, void *all, size_t bytes, void *stream);

#endif
