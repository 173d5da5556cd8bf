/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and planned bytes as JSON, and their sums over ranks. */
#ifndef FERRY_CLI_COUNTERS_H
#define FERRY_CLI_COUNTERS_H

#include "ferry/ferry.h"

#include <jansson.h>

/* Counts add up; of macrobatches and ring_high_water the largest stays. */
void counters_add(ferry_stats *total, const ferry_stats *one);
json_t *counters_json(const ferry_stats *stats);
json_t *planned_json(const ferry_plan *plan);

#endif
