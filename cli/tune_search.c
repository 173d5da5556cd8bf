/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search of `ferry tune`, apart from measuring: along one axis after the other, a candidate replaces what stood
 * before only when it is faster by more than the measurements scatter.
 */
#include "cli/tune.h"

#include <stdlib.h>
#include <string.h>

const char *const tune_axis_name[TUNE_AXES] = {"minibatch_rows", "fan_out", "pull_warps", "comm_sms", "comm_workers"};

static int64_t *value_of(fy_tune_entry *e, int axis) {
    switch (axis) {
    case TUNE_MINIBATCH:
        return &e->minibatch_rows;
    case TUNE_FAN_OUT:
        return &e->fan_out;
    case TUNE_PULL_WARPS:
        return &e->pull_warps;
    case TUNE_COMM_SMS:
        return &e->comm_sms;
    default:
        return &e->comm_workers;
    }
}

int tune_neighbours(int quick) { return quick ? 2 : 4; }

/* The values that are worth a look; those that the ring or the workers do not allow are left out. */
static int values_of(const fy_tune_entry *base, const ferry_plan *plan, int axis, int quick, int64_t *values) {
    int gpu = base->backend == FERRY_CUDA, n = 0;
    int64_t rows = plan->minibatch_rows;
    const int64_t minibatch[] = {rows / 2, rows * 2, rows / 4, rows * 4};
    const int64_t comm_sms[] = {4, 8, 16};
    switch (axis) {
    case TUNE_MINIBATCH:
        for (int i = 0; i < tune_neighbours(quick); i++)
            if (minibatch[i] >= (gpu ? 128 : 64) && minibatch[i] <= plan->ring_rows) values[n++] = minibatch[i];
        break;
    case TUNE_FAN_OUT:
        if (gpu && base->slots > 1) values[n++] = plan->fan_out == 1 ? 2 : 1;
        break;
    case TUNE_PULL_WARPS:
        for (int64_t w = 1; gpu && !quick && w <= 2; w++)
            if (w != plan->pull_warps) values[n++] = w;
        break;
    case TUNE_COMM_SMS:
        for (int i = 0; gpu && !quick && i < 3; i++)
            if (comm_sms[i] < base->workers / 2) values[n++] = comm_sms[i];
        break;
    case TUNE_COMM_WORKERS:
        for (int64_t w = 1; !gpu && w < base->workers && w <= tune_neighbours(quick); w++)
            if (w != plan->comm_workers) values[n++] = w;
        break;
    default:
        break;
    }
    return n;
}

int tune_candidates(const fy_tune_entry *base, const ferry_plan *plan, int axis, int quick, fy_tune_entry *candidates) {
    int64_t values[TUNE_CANDIDATES];
    int n = values_of(base, plan, axis, quick, values);
    candidates[0] = *base;
    for (int i = 0; i < n; i++) {
        candidates[1 + i] = *base;
        *value_of(&candidates[1 + i], axis) = values[i];
    }
    return 1 + n;
}

/* ---- Series ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A quarter (1), half (2) or three quarters (3) of the values are smaller. */
static double quartile(const double *values, int count, int quarter) {
    double sorted[TUNE_REPEAT];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    double at = (double)(count - 1) * quarter / 4;
    int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

double tune_median(const double *values, int count) { return quartile(values, count, 2); }

static double scatter(const double *values, int count) {
    return quartile(values, count, 3) - quartile(values, count, 1);
}

int tune_beats(const double *base, const double *candidate, int count) {
    const double least_share = 0.005; /* less is not worth a line, however steady */
    double own = scatter(base, count), other = scatter(candidate, count), before = tune_median(base, count);
    double gain = before - tune_median(candidate, count);
    return gain > (own > other ? own : other) && gain > least_share * before;
}
