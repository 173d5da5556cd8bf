/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the oracle: BF16 rounding, and one expert applied to one token, forward and backward. */
#ifndef FERRY_REF_REF_PARTS_H
#define FERRY_REF_REF_PARTS_H

#include "ref/ref.h"

/* The nearest BF16 value, ties to even; denormals kept, too large becomes infinite, NaN stays NaN. */
double fy_ref_bf16(double value);
/* The same for what backward compares with `bound` > 0: value <= bound stays <= bound, value > bound stays > bound. */
double fy_ref_bf16_beside(double value, double bound);

/* One gated FFN: a routed expert, or the shared one. */
typedef struct fy_ref_expert {
    int64_t hidden, width; /* H; I or S */
    double limit;          /* 0: no clamp */
    fy_ref_mode mode;
    const double *gate, *up;     /* [width, hidden] */
    const double *down;          /* [hidden, width] */
    double *dgate, *dup, *ddown; /* added to; NULL: not wanted */
} fy_ref_expert;

/* What one token leaves behind in an expert. Each array holds the largest width, or H. */
typedef struct fy_ref_row {
    double *g, *u;             /* as saved for backward: unclamped, rounded in FY_REF_POINTS */
    double *h, *y;             /* [width], [H] */
    double *dh, *dg, *du, *wh; /* [width]; wh is what the gradient of `down` multiplies: weight * h' */
    double *dx;                /* [H] */
} fy_ref_row;

/* Fills g, u, h and y. */
void fy_ref_expert_forward(const fy_ref_expert *expert, const double *x, fy_ref_row *row);
/* From g and u of the forward: fills dx, adds to the expert's gradients, returns the gradient of `weight`. */
double fy_ref_expert_backward(const fy_ref_expert *expert, const double *x, const double *dout, double weight,
                              fy_ref_row *row);

#endif
