/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector operations of the product for any processor: 4 lanes of the compiler's own vectors. The product of two
 * BF16 numbers is exact in double, and so short that the double sum never lands on a tie of F32 that the exact sum is
 * not on: rounding it to F32 gives what one fused multiply-add gives, denormals included.
 */
#ifndef FERRY_CPU_KERNELS_PORTABLE_H
#define FERRY_CPU_KERNELS_PORTABLE_H

#define FY_ISA FERRY_ISA_PORTABLE
#define FY_ISA_NAME "portable"
#define FY_TABLE fy_kernels_portable
#define FY_STRIP_ROWS 3
enum { FY_LANES = 4 };
typedef float fy_vector __attribute__((vector_size(16)));
typedef double fy_wide_vector __attribute__((vector_size(32)));

static inline fy_vector vector_zero(void) { return (fy_vector){0}; }

static inline fy_vector vector_all(float value) { return (fy_vector){value, value, value, value}; }

static inline fy_vector vector_load(const float *from) {
    fy_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void vector_store(float *to, fy_vector v) { memcpy(to, &v, sizeof v); }

/* Only the first `lanes` lanes touch memory. */
static inline fy_vector vector_load_part(const float *from, int lanes) {
    fy_vector v = vector_zero();
    for (int i = 0; i < lanes; i++) v[i] = from[i];
    return v;
}

static inline void vector_store_part(float *to, fy_vector v, int lanes) {
    for (int i = 0; i < lanes; i++) to[i] = v[i];
}

static inline fy_vector vector_fma(fy_vector a, fy_vector b, fy_vector sum) {
    fy_wide_vector product = __builtin_convertvector(a, fy_wide_vector) * __builtin_convertvector(b, fy_wide_vector);
    return __builtin_convertvector(__builtin_convertvector(sum, fy_wide_vector) + product, fy_vector);
}

static inline fy_vector vector_one_nan(fy_vector v) {
    for (int i = 0; i < FY_LANES; i++) v[i] = fy_one_nan(v[i]);
    return v;
}

/* 4 consecutive BF16 values. */
static inline fy_vector vector_widen(const uint16_t *from) {
    return (fy_vector){fy_bf16_to_f32(from[0]), fy_bf16_to_f32(from[1]), fy_bf16_to_f32(from[2]),
                       fy_bf16_to_f32(from[3])};
}

/* The first `lanes` of them; the others are 0 and not read. */
static inline fy_vector vector_widen_part(const uint16_t *from, int lanes) {
    fy_vector v = vector_zero();
    for (int i = 0; i < lanes; i++) v[i] = fy_bf16_to_f32(from[i]);
    return v;
}

/* Depths that one transposition covers. */
enum { FY_TRANSPOSE_DEPTH = 4 };

/* strip[k * 4 + lane] = row[lane][k] for k < depth <= 4; every row has 4 readable values. */
static inline void transpose_rows(float *strip, const uint16_t *const row[FY_LANES], int depth) {
    for (int k = 0; k < depth; k++)
        for (int lane = 0; lane < FY_LANES; lane++) strip[k * FY_LANES + lane] = fy_bf16_to_f32(row[lane][k]);
}

#endif
