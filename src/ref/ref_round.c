/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 by arithmetic on doubles: a value is divided by the spacing of BF16 values around it, which is exact. */
#include "ref/ref_parts.h"

#include <math.h>

/* 8 significant bits, smallest normal 2^-126, largest finite below 2^128. `whole` rounds to an integer. */
static double to_grid(double value, double (*whole)(double)) {
    if (value == 0 || !isfinite(value)) return value;
    int exponent;
    frexp(value, &exponent); /* |value| is in [2^(exponent-1), 2^exponent) */
    double spacing = ldexp(1, exponent - 8 > -133 ? exponent - 8 : -133);
    double rounded = whole(value / spacing) * spacing;
    return fabs(rounded) < 0x1p128 ? rounded : copysign(INFINITY, value);
}

double fy_ref_bf16(double value) { return to_grid(value, rint); }

double fy_ref_bf16_beside(double value, double bound) {
    double rounded = to_grid(value, rint);
    if (value <= bound && rounded > bound) return to_grid(value, floor);
    if (value > bound && rounded <= bound) return to_grid(value, ceil);
    return rounded;
}
