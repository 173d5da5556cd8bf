/* SPDX-License-Identifier: Apache-2.0 */
/* The vector operations of the product in AVX2 with FMA: 8 lanes; 6 x 2 accumulators leave room for the operands. */
#ifndef FERRY_CPU_KERNELS_AVX2_H
#define FERRY_CPU_KERNELS_AVX2_H

#include <immintrin.h>

#define FY_ISA FERRY_ISA_AVX2
#define FY_ISA_NAME "avx2"
#define FY_TABLE fy_kernels_avx2
#define FY_STRIP_ROWS 6
enum { FY_LANES = 8 };
typedef __m256 fy_vector;

static inline fy_vector vector_zero(void) { return _mm256_setzero_ps(); }

static inline fy_vector vector_all(float value) { return _mm256_set1_ps(value); }

static inline fy_vector vector_load(const float *from) { return _mm256_loadu_ps(from); }

static inline void vector_store(float *to, fy_vector v) { _mm256_storeu_ps(to, v); }

static inline __m256i first_lanes(int lanes) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Only the first `lanes` lanes touch memory. */
static inline fy_vector vector_load_part(const float *from, int lanes) {
    return _mm256_maskload_ps(from, first_lanes(lanes));
}

static inline void vector_store_part(float *to, fy_vector v, int lanes) {
    _mm256_maskstore_ps(to, first_lanes(lanes), v);
}

static inline fy_vector vector_fma(fy_vector a, fy_vector b, fy_vector sum) { return _mm256_fmadd_ps(a, b, sum); }

static inline fy_vector vector_one_nan(fy_vector v) {
    __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(FY_F32_NAN_BITS)), is_nan);
}

static inline fy_vector widen_halves(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* 8 consecutive BF16 values. */
static inline fy_vector vector_widen(const uint16_t *from) {
    return widen_halves(_mm_loadu_si128((const __m128i *)from));
}

static inline uint64_t first_of_four(const uint16_t *from, int count) {
    uint64_t four = 0;
    uint32_t two = 0;
    if (count >= 4) {
        memcpy(&four, from, sizeof four);
        return four;
    }
    if (count & 2) memcpy(&two, from, sizeof two);
    if (count & 1) four = (uint64_t)from[count - 1] << 16 * (count - 1);
    return four | two;
}

/* The first `lanes` < 8 of them; the others are 0 and not read. */
static inline fy_vector vector_widen_part(const uint16_t *from, int lanes) {
    uint64_t high = lanes > 4 ? first_of_four(from + 4, lanes - 4) : 0;
    return widen_halves(_mm_set_epi64x((long long)high, (long long)first_of_four(from, lanes)));
}

/* Depths that one transposition covers: dwords are pairs of consecutive k. */
enum { FY_TRANSPOSE_DEPTH = 8 };

/* strip[k * 8 + lane] = row[lane][k] for k < depth <= 8; every row has 8 readable values. */
static inline void transpose_rows(float *strip, const uint16_t *const row[FY_LANES], int depth) {
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    /* Register r: rows r and r + 4, four dwords (eight k) of each. */
    __m256i r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)row[i])),
                                       _mm_loadu_si128((const __m128i *)row[i + 4]), 1);
    /* A 4 x 4 transposition of dwords inside each 128-bit lane puts the 8 rows of one k pair in order. */
    __m256i low01 = _mm256_unpacklo_epi32(r[0], r[1]), high01 = _mm256_unpackhi_epi32(r[0], r[1]);
    __m256i low23 = _mm256_unpacklo_epi32(r[2], r[3]), high23 = _mm256_unpackhi_epi32(r[2], r[3]);
    __m256i pair[4] = {_mm256_unpacklo_epi64(low01, low23), _mm256_unpackhi_epi64(low01, low23),
                       _mm256_unpacklo_epi64(high01, high23), _mm256_unpackhi_epi64(high01, high23)};
    for (int i = 0; i < 4; i++) {
        int k = i * 2;
        if (k < depth) _mm256_storeu_si256((__m256i *)(strip + k * FY_LANES), _mm256_slli_epi32(pair[i], 16));
        if (k + 1 < depth)
            _mm256_storeu_si256((__m256i *)(strip + (k + 1) * FY_LANES), _mm256_and_si256(pair[i], upper));
    }
}

#endif
