/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 and F32. A BF16 number is the upper half of an F32 number, so widening is exact. Denormals are kept. A result
 * that is not a number is always the same one (sign clear, only the quiet bit set): which operand's payload survives
 * an operation differs between instruction sets, and results must not.
 */
#ifndef FERRY_RULES_BF16_H
#define FERRY_RULES_BF16_H

#include "rules/rule.h"

#define FY_BF16_NAN 0x7fc0u
#define FY_F32_NAN_BITS 0x7fc00000u

FY_RULE float fy_bf16_to_f32(uint16_t value) { return fy_float_of((uint32_t)value << 16); }

/* To nearest, ties to even; too large becomes Inf. */
FY_RULE uint16_t fy_bf16_from_f32(float value) {
    uint32_t bits = fy_bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (uint16_t)(is_nan ? FY_BF16_NAN : rounded);
}

/* The value, or the one NaN. */
FY_RULE float fy_one_nan(float value) {
    uint32_t bits = fy_bits_of(value);
    uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return fy_float_of(is_nan ? FY_F32_NAN_BITS : bits);
}

/*
 * To nearest, but never across a bound, low < 0 < high: the result is > high exactly if the value is, and < low exactly
 * if the value is. A rounded value that crossed is one BF16 step away from the right side. Infinite bounds are none.
 */
FY_RULE uint16_t fy_bf16_from_f32_between(float value, float low, float high) {
    uint32_t rounded = fy_bf16_from_f32(value);
    float widened = fy_bf16_to_f32((uint16_t)rounded);
    uint32_t beyond = (value > high ? 1u : 0u) + (value < low ? 1u : 0u);
    uint32_t rounded_beyond = (widened > high ? 1u : 0u) + (widened < low ? 1u : 0u);
    return (uint16_t)(rounded + beyond - rounded_beyond); /* sign and magnitude: + 1 is one step away from zero */
}

#endif
