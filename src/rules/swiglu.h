/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU of one element: h = silu(clamp g) * clamp u, and its gradient. The limit L is > 0, or Inf for none: g is
 * clamped from above, u on both sides. Equality with a bound passes the gradient. NaN passes every clamp.
 */
#ifndef FERRY_RULES_SWIGLU_H
#define FERRY_RULES_SWIGLU_H

#include "rules/bf16.h"
#include "rules/exp.h"

/* The limit of a layer's configuration, where 0 means none, as these rules take it. */
FY_RULE float fy_swiglu_limit(float configured) { return configured > 0.0f ? configured : fy_float_of(0x7f800000u); }

FY_RULE float fy_clamp_gate(float g, float limit) { return g > limit ? limit : g; }

FY_RULE float fy_clamp_up(float u, float limit) {
    u = u > limit ? limit : u;
    return u < -limit ? -limit : u;
}

/* The saved forms of g and u: unclamped, on the same side of every bound as the F32 value. */
FY_RULE uint16_t fy_save_gate(float g, float limit) {
    return fy_bf16_from_f32_between(g, -fy_float_of(0x7f800000u), limit);
}

FY_RULE uint16_t fy_save_up(float u, float limit) { return fy_bf16_from_f32_between(u, -limit, limit); }

/* sigmoid(g) and sigmoid(-g) = 1 - sigmoid(g), both to full precision: the exponential's argument is never positive. */
typedef struct fy_sigmoids {
    float of, of_minus;
} fy_sigmoids;

FY_RULE fy_sigmoids fy_sigmoids_of(float g) {
    float e = fy_exp(fy_float_of(fy_bits_of(g) | 0x80000000u));
    float larger = 1.0f / (1.0f + e);
    float smaller = e * larger;
    fy_sigmoids s;
    s.of = g >= 0.0f ? larger : smaller;
    s.of_minus = g >= 0.0f ? smaller : larger;
    return s;
}

FY_RULE float fy_silu(float g) { return g * fy_sigmoids_of(g).of; }

/* From the F32 accumulators of g and u; not rounded to BF16. */
FY_RULE float fy_swiglu(float g, float u, float limit) {
    return fy_silu(fy_clamp_gate(g, limit)) * fy_clamp_up(u, limit);
}

/* h of saved g and u; and the gradients of g and u when `dh` (the slot's weight included) is that of h. */
typedef struct fy_swiglu_gradient {
    float h, dg, du;
} fy_swiglu_gradient;

FY_RULE fy_swiglu_gradient fy_swiglu_grad(float g, float u, float dh, float limit) {
    float gate = fy_clamp_gate(g, limit);
    float up = fy_clamp_up(u, limit);
    fy_sigmoids s = fy_sigmoids_of(gate);
    float silu = gate * s.of;
    float slope = s.of * (1.0f + gate * s.of_minus);
    float dg = dh * up * slope;
    float du = dh * silu;
    fy_swiglu_gradient result;
    result.h = silu * up;
    result.dg = g > limit ? 0.0f : dg;
    result.du = ((u > limit) | (u < -limit)) ? 0.0f : du;
    return result;
}

#endif
