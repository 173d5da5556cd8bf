/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in all-gathers. They say their own sentence and return its ferry_status, unlike a caller's callback. */
#ifndef FERRY_COMM_BOOTSTRAP_H
#define FERRY_COMM_BOOTSTRAP_H

#include "ferry/ferry.h"

int fy_thread_allgather(void *user, const void *mine, void *all, size_t bytes);
int fy_env_allgather(void *user, const void *mine, void *all, size_t bytes);
/* How long a thread waits in an all-gather for the others; 600 s from creation on. Before the group is used. */
void fy_thread_group_timeout(ferry_thread_group *group, double timeout_s);
/* The rank has failed and gathers no more: who waits for it, now or later, fails at once. */
void fy_thread_group_leave(ferry_thread_group *group, int rank);

#endif
