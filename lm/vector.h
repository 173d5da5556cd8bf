/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of rows: 8 lanes of F32, whatever the processor's vectors are. Sums over a row go through 8 chains
 * (lane = index mod 8) that are folded by halves at the end; products and sums round separately. So a function
 * compiled for several instruction sets gives the same bits from each.
 */
#ifndef FERRY_LM_VECTOR_H
#define FERRY_LM_VECTOR_H

#include <stdint.h>
#include <string.h>

/* Functions marked so are compiled per instruction set and chosen when the program is loaded. Sanitizers cannot
 * instrument that choice. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&                       \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LM_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define LM_CLONES
#endif

#define LM_INLINE static inline __attribute__((always_inline))

typedef float lm_v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t lm_i8 __attribute__((vector_size(32), aligned(4), may_alias));

/* Lanes i < n from memory, the others `fill`; all lanes when n >= 8. */
#define LM_LOAD(to, from, n, fill)                                                                                     \
    do {                                                                                                               \
        if ((n) >= 8) {                                                                                                \
            (to) = *(const lm_v8 *)(from);                                                                             \
        } else {                                                                                                       \
            (to) = (lm_v8){0} + (fill);                                                                                \
            memcpy(&(to), (from), (size_t)(n) * sizeof(float));                                                        \
        }                                                                                                              \
    } while (0)

#define LM_STORE(to, from, n)                                                                                          \
    do {                                                                                                               \
        if ((n) >= 8) {                                                                                                \
            *(lm_v8 *)(to) = (from);                                                                                   \
        } else {                                                                                                       \
            memcpy((to), &(from), (size_t)(n) * sizeof(float));                                                        \
        }                                                                                                              \
    } while (0)

/* *to = the larger (smaller) of *to and x, lane by lane. */
LM_INLINE void lm_raise(lm_v8 *to, lm_v8 x) {
    lm_i8 mask = x > *to;
    *to = (lm_v8)((mask & (lm_i8)x) | (~mask & (lm_i8)*to));
}

LM_INLINE void lm_lower(lm_v8 *to, lm_v8 x) {
    lm_i8 mask = x < *to;
    *to = (lm_v8)((mask & (lm_i8)x) | (~mask & (lm_i8)*to));
}

LM_INLINE float lm_fold_sum(const lm_v8 *lanes) {
    float a[8];
    memcpy(a, lanes, sizeof a);
    for (int half = 4; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    }
    return a[0];
}

LM_INLINE float lm_fold_max(const lm_v8 *lanes) {
    float a[8];
    memcpy(a, lanes, sizeof a);
    for (int half = 4; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    }
    return a[0];
}

/* *x = e^*x, relative error below 2e-7; arguments are held within -87 .. 88. */
LM_INLINE void lm_exp(lm_v8 *x) {
    const lm_v8 zero = {0};
    lm_v8 a = *x;
    lm_raise(&a, zero - 87.0f);
    lm_lower(&a, zero + 88.0f);
    lm_v8 shifted = a * 1.44269504f + 12582912.0f; /* the integer nearest to a / ln 2 ends up in the low bits */
    lm_v8 n = shifted - 12582912.0f;
    lm_v8 r = (a - n * 0.693359375f) + n * 2.12194440e-4f;
    lm_v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    *x = (lm_v8)((lm_i8)p + ((lm_i8)shifted << 23));
}

LM_INLINE uint16_t lm_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

LM_INLINE float lm_widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

#endif
