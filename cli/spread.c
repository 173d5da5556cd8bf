/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts a copy of the values, for the reports of `ferry bench`. The median of an even count is the mean of the middle
 * two.
 */
#include "cli/spread.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

spread spread_of(const double *values, int64_t count) {
    double sorted[SPREAD_MOST];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return (spread){(sorted[(count - 1) / 2] + sorted[count / 2]) / 2, sorted[0], sorted[count - 1]};
}

json_t *spread_json(const spread *s, double unit) {
    return json_pack("{s:f,s:f,s:f}", "median", unit * s->median, "min", unit * s->least, "max", unit * s->most);
}
