/* SPDX-License-Identifier: Apache-2.0 */
/* The least time that a machine needs: for the products, for what crosses between ranks, and for memory. */
#ifndef FERRY_CLI_PLAN_FLOOR_H
#define FERRY_CLI_PLAN_FLOOR_H

#include "cli/plan_count.h"
#include "cli/plan_machine.h"

/* Of the busiest rank, each counted on its own. */
typedef struct plan_work {
    double flop;
    double link, link_each; /* bytes of the busiest direction, with and without fan-out */
    double memory;          /* bytes read and written */
} plan_work;

/* Seconds of each, and the largest. */
typedef struct plan_floor {
    double flop, link, memory, floor;
} plan_floor;

/* `both`: a forward that keeps gate and up for the backward, and the backward. `gradient_bytes`: of an element. */
plan_work plan_work_of(const plan_counts *counts, const ferry_layer_config *config, int both, int gradient_bytes);
plan_floor plan_floor_of(const plan_work *work, const machine *m);

/* Rows of a minibatch that make at least two full waves of product tiles on that machine; 0 for this CPU, whose rule
 * is the plan's own. */
int64_t plan_two_waves(const ferry_layer_config *config, const machine *m);

#endif
