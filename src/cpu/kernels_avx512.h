/* SPDX-License-Identifier: Apache-2.0 */
/* The vector operations of the product in AVX-512: 16 lanes; 14 x 2 accumulators fill the registers. */
#ifndef FERRY_CPU_KERNELS_AVX512_H
#define FERRY_CPU_KERNELS_AVX512_H

#include <immintrin.h>

#define FY_ISA FERRY_ISA_AVX512
#define FY_ISA_NAME "avx512"
#define FY_TABLE fy_kernels_avx512
#define FY_STRIP_ROWS 14
enum { FY_LANES = 16 };
typedef __m512 fy_vector;

static inline fy_vector vector_zero(void) { return _mm512_setzero_ps(); }

static inline fy_vector vector_all(float value) { return _mm512_set1_ps(value); }

static inline fy_vector vector_load(const float *from) { return _mm512_loadu_ps(from); }

static inline void vector_store(float *to, fy_vector v) { _mm512_storeu_ps(to, v); }

/* Only the first `lanes` lanes touch memory. */
static inline fy_vector vector_load_part(const float *from, int lanes) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1u), from);
}

static inline void vector_store_part(float *to, fy_vector v, int lanes) {
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << lanes) - 1u), v);
}

static inline fy_vector vector_fma(fy_vector a, fy_vector b, fy_vector sum) { return _mm512_fmadd_ps(a, b, sum); }

static inline fy_vector vector_one_nan(fy_vector v) {
    __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(v, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(FY_F32_NAN_BITS)));
}

/* 16 consecutive BF16 values. */
static inline fy_vector vector_widen(const uint16_t *from) {
    __m256i halves = _mm256_loadu_si256((const __m256i *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* The first `lanes` of them; the others are 0 and not read. */
static inline fy_vector vector_widen_part(const uint16_t *from, int lanes) {
    __m256i halves = _mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1u), from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Depths that one transposition covers: dwords are pairs of consecutive k. */
enum { FY_TRANSPOSE_DEPTH = 32 };

/* strip[k * 16 + lane] = row[lane][k] for k < depth <= 32; every row has 32 readable values. */
static inline void transpose_rows(float *strip, const uint16_t *const row[FY_LANES], int depth) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    for (int quarter = 0; quarter < 4 && quarter * 8 < depth; quarter++) {
        /* Register r: rows r, r + 4, r + 8, r + 12, four dwords (eight k) of each. */
        __m512i r[4];
        for (int i = 0; i < 4; i++) {
            __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row[i] + quarter * 8)));
            v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[i + 4] + quarter * 8)), 1);
            v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[i + 8] + quarter * 8)), 2);
            r[i] = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[i + 12] + quarter * 8)), 3);
        }
        /* A 4 x 4 transposition of dwords inside each 128-bit lane puts the 16 rows of one k pair in order. */
        __m512i low01 = _mm512_unpacklo_epi32(r[0], r[1]), high01 = _mm512_unpackhi_epi32(r[0], r[1]);
        __m512i low23 = _mm512_unpacklo_epi32(r[2], r[3]), high23 = _mm512_unpackhi_epi32(r[2], r[3]);
        __m512i pair[4] = {_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
                           _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)};
        for (int i = 0; i < 4; i++) {
            int k = quarter * 8 + i * 2;
            if (k < depth) _mm512_storeu_si512(strip + k * FY_LANES, _mm512_slli_epi32(pair[i], 16));
            if (k + 1 < depth) _mm512_storeu_si512(strip + (k + 1) * FY_LANES, _mm512_and_si512(pair[i], upper));
        }
    }
}

#endif
