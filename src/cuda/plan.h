/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the CUDA backend: rows by rule, and where everything lies in symmetric, table and ring memory. Pure. */
#ifndef FERRY_CUDA_PLAN_H
#define FERRY_CUDA_PLAN_H

#include "core/layer.h"
#include "cuda/call.h"

enum {
    FY_PULL_WARPS = 2,      /* that a multiprocessor has to spare, and by rule uses */
    FY_MOST_PULL_WARPS = 3, /* that may be asked for, by the interface */
    FY_WHOLE_H200 = 132     /* multiprocessors, where a plan does not say */
};

/* What may be tuned; no bit of a result depends on it. */
typedef struct fy_gpu_knobs {
    int sms;        /* multiprocessors of the compute launch */
    int comm_warps; /* pulling warps in each of them, 1 or 2 */
    int comm_sms;   /* of them, set apart for pulling and sums alone */
    int fan_out;    /* 1: a token that several rows want is pulled once */
} fy_gpu_knobs;

/* Minibatch rows by rule where the shape has none, rounded to what the tiles need. */
void fy_gpu_choose_rows(fy_shape *shape, int sms);
void fy_gpu_lay_symmetric(const fy_shape *shape, fy_gpu_symmetric *at);
/* Sets the pointers of `tables` as if the memory began at `base`; returns the bytes. */
int64_t fy_gpu_lay_tables(const fy_shape *shape, uint8_t *base, fy_gpu_tables *tables);
int64_t fy_gpu_lay_ring(const fy_shape *shape, uint8_t *base, fy_gpu_tables *tables);
/* Of a shape that has been planned. */
fy_gpu_knobs fy_gpu_knobs_of(const fy_shape *shape, const ferry_plan *plan);
ferry_status fy_gpu_plan(fy_shape *shape, int comm_workers, int compute_workers, ferry_plan *plan);

#endif
