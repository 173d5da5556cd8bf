/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the other nodes are still there, asked by a thread of its own. While a GPU waits for another one, the rank's
 * own thread waits for the GPU, and would wait for a node that is lost for ever.
 */
#ifndef FERRY_LM_OUTER_WATCH_H
#define FERRY_LM_OUTER_WATCH_H

#include "ferry/ferry.h"

typedef struct lm_watch lm_watch;

/* Collective across nodes. From now until lm_watch_destroy the bootstrap is the watch's alone. `lost` is called by its
 * thread, at most once, after lm_watch_check has begun to fail. 0, or -1 with lm_error(). */
int lm_watch_create(const ferry_bootstrap *across, void (*lost)(void *user), void *user, lm_watch **watch);
/* 0, or -1 with lm_error() once a node was lost. */
int lm_watch_check(lm_watch *watch);
/* finished: waits until all nodes say so, or one is lost. Otherwise tells the others that this one failed. Accepts
 * NULL. */
void lm_watch_destroy(lm_watch *watch, int finished);

#endif
