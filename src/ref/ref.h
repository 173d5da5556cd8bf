/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle: the layer in plain FP64 loops, for the whole global batch at once, no ranks. It shares no code with
 * src/rules or any backend. Two modes: FY_REF_EXACT rounds nothing; FY_REF_POINTS rounds to BF16 exactly where the
 * layer does (contract "rounding points" of docs/design.md) and nowhere else: what the layer only keeps in F32
 * (accumulators, h', dh, router gradients) stays double here.
 *
 * Nothing is skipped: a NaN or a zero takes part in every product that its slot has. A slot without an expert takes
 * part in none, and its weight is not read.
 */
#ifndef FERRY_REF_REF_H
#define FERRY_REF_REF_H

#include <stdint.h>

typedef enum fy_ref_mode { FY_REF_EXACT, FY_REF_POINTS } fy_ref_mode;

/* All arrays row-major and contiguous, values as double (inputs already BF16-representable where the layer takes BF16,
 * F32-representable where it takes F32: the router weights and the limit). */
typedef struct fy_ref_problem {
    int64_t tokens, hidden, intermediate, shared, experts, slots;
    double limit; /* 0: no clamp */
    fy_ref_mode mode;
    const double *x;                       /* [N,H] */
    const int64_t *ids;                    /* [N,K]; outside 0..E-1: no expert */
    const double *weights;                 /* [N,K] */
    const double *gate, *up;               /* [E,I,H] */
    const double *down;                    /* [E,H,I] */
    const double *shared_gate, *shared_up; /* [S,H]; not read when S is 0 */
    const double *shared_down;             /* [H,S]; likewise */
    const double *dout;                    /* [N,H]; NULL: forward only */
} fy_ref_problem;

/* Caller-allocated; NULL: not wanted. Written whole, whatever was there; without dout only `out` is. */
typedef struct fy_ref_result {
    double *out;                 /* [N,H] */
    double *dx;                  /* [N,H] */
    double *dweights;            /* [N,K]; 0 where there is no expert */
    double *dgate, *dup, *ddown; /* like the weights: Sigma only, no beta, not rounded to the gradient's dtype */
    double *dshared_gate, *dshared_up, *dshared_down;
} fy_ref_result;

/* 0 on success, -1 when memory ran out. */
int fy_ref_layer(const fy_ref_problem *problem, fy_ref_result *result);

#endif
