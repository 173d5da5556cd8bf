/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exponential function of all backends: one polynomial in plain F32 additions and multiplications, so that CPU
 * builds agree in every bit. Within 1 unit in the last place; NaN stays NaN, too large becomes Inf, too small goes
 * through the denormals to 0.
 */
#ifndef FERRY_RULES_EXP_H
#define FERRY_RULES_EXP_H

#include "rules/rule.h"

/* exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. */
FY_RULE float fy_exp(float x) {
    /* Beyond these the result is Inf or 0 anyway; within them n fits. A comparison with NaN is false and keeps it. */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;

    /* Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum. */
    const float shifter = 0x1.8p23f;
    float shifted = x * 0x1.715476p0f + shifter;
    float n = shifted - shifter;
    int32_t exponent = (int32_t)(fy_bits_of(shifted) - fy_bits_of(shifter));

    /* ln 2 in two parts; the first has 15 bits, so n times it is exact. */
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;

    /* 1 + r + r^2 q(r): q has the least largest error relative to exp(r), 3.1e-9. */
    float q = 0x1.6a23d2p-10f;
    q = q * r + 0x1.123a22p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    float p = 1.0f + (r + (r * r) * q);

    /* 2^n in two factors: each is a normal number, only the second product rounds (a denormal) or overflows. */
    int32_t half = exponent >> 1;
    uint32_t first = (uint32_t)(half + 127) << 23;
    uint32_t second = (uint32_t)(exponent - half + 127) << 23;
    return (p * fy_float_of(first)) * fy_float_of(second);
}

#endif
