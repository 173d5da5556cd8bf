/* SPDX-License-Identifier: Apache-2.0 */
/* What repetitions say: the median, the least and the most. */
#ifndef FERRY_CLI_SPREAD_H
#define FERRY_CLI_SPREAD_H

#include <jansson.h>
#include <stdint.h>

typedef struct spread {
    double median, least, most;
} spread;

enum { SPREAD_MOST = 2000 };

/* Of `count` values, 1 .. SPREAD_MOST. */
spread spread_of(const double *values, int64_t count);
/* {"median", "min", "max"}, each times `unit`. */
json_t *spread_json(const spread *s, double unit);

#endif
