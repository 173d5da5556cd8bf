/* SPDX-License-Identifier: Apache-2.0 */
/* The product kernels: against a plain reference, bit for bit over instruction sets, whatever surrounds a row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/product.h"
#include "rules/bf16.h"

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int random_below(int n) { return (int)(random_bits() % (uint64_t)n); }

/* Roughly normal, of unit scale. */
static float random_value(void) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)(random_bits() >> 40) * 0x1p-24f;
    return sum - 6.0f;
}

static int kernels_count;
static const fy_kernels *kernels[3];

static void find_kernels(void) {
    for (int isa = FERRY_ISA_PORTABLE; isa <= FERRY_ISA_AVX512; isa++)
        if (fy_kernels_select((ferry_isa)isa, &kernels[kernels_count]) == FERRY_OK) kernels_count++;
    for (int i = 0; i < kernels_count; i++) printf("instruction set: %s\n", kernels[i]->name);
}

static void *scratch;

/* An operand in memory of exactly its valid elements, so that a sanitizer sees any read beyond them. */
typedef struct matrix {
    fy_operand operand;
    uint16_t *memory;
    int count, depth;
} matrix;

static matrix matrix_make(int count, int depth, int along_k, int gap) {
    matrix m = {.count = count, .depth = depth};
    int64_t stride = (along_k ? depth : count) + gap;
    int64_t lines = along_k ? count : depth, length = along_k ? depth : count;
    int64_t size = lines == 0 || length == 0 ? 0 : (lines - 1) * stride + length;
    m.memory = malloc(sizeof(uint16_t) * (size_t)(size + 1));
    assert_non_null(m.memory);
    m.operand.data = m.memory + 1; /* odd: no alignment is promised */
    m.operand.i_stride = along_k ? stride : 1;
    m.operand.k_stride = along_k ? 1 : stride;
    /* NaN between the lines must never show. */
    for (int64_t i = 0; i < size; i++) m.memory[1 + i] = 0x7fc1;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < depth; k++)
            m.memory[1 + i * m.operand.i_stride + k * m.operand.k_stride] = fy_bf16_from_f32(random_value());
    return m;
}

static uint16_t *matrix_at(const matrix *m, int i, int k) {
    return &m->memory[1 + i * m->operand.i_stride + k * m->operand.k_stride];
}

static float element(const matrix *m, int i, int k) { return fy_bf16_to_f32(*matrix_at(m, i, k)); }

/* The definition: one fused chain. */
static float chain(const matrix *a, int i, const matrix *b, int j, float start) {
    float sum = start;
    for (int k = 0; k < a->depth; k++) sum = fmaf(element(a, i, k), element(b, j, k), sum);
    return fy_one_nan(sum);
}

static float *accumulators(int64_t count) {
    float *acc = malloc(sizeof(float) * (size_t)(count + 1));
    assert_non_null(acc);
    for (int64_t i = 0; i < count; i++) acc[i] = random_value() * 4.0f;
    return acc;
}

static void assert_same_bits(const float *a, const float *b, int64_t count, const char *what) {
    for (int64_t i = 0; i < count; i++)
        if (fy_bits_of(a[i]) != fy_bits_of(b[i]))
            fail_msg("%s: element %lld is %a (%08x), expected %a (%08x)", what, (long long)i, (double)a[i],
                     fy_bits_of(a[i]), (double)b[i], fy_bits_of(b[i]));
}

/* Every instruction set gives the bits of the definition and leaves what is between the rows alone. */
static void check_case(int rows, int columns, int depth, int add, int a_along_k, int b_along_k, int special) {
    matrix a = matrix_make(rows, depth, a_along_k, random_below(5));
    matrix b = matrix_make(columns, depth, b_along_k, random_below(5));
    static const uint16_t specials[] = {0x7fc0, 0xffc5, 0x7f80, 0xff80, 0x0000, 0x8000,
                                        0x0001, 0x8001, 0x007f, 0x7f7f, 0x0080};
    for (int n = 0; special && n < 8 && rows * columns * depth > 0; n++) {
        *matrix_at(&a, random_below(rows), random_below(depth)) = specials[random_below(11)];
        *matrix_at(&b, random_below(columns), random_below(depth)) = specials[random_below(11)];
    }
    int64_t stride = columns + random_below(4), size = rows ? (rows - 1) * stride + columns : 0;
    float *before = accumulators(size), *expected = accumulators(size), *got = accumulators(size);
    memcpy(expected, before, sizeof(float) * (size_t)size);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            expected[i * stride + j] =
                depth || !add ? chain(&a, i, &b, j, add ? before[i * stride + j] : 0.0f) : before[i * stride + j];
    for (int n = 0; n < kernels_count; n++) {
        memcpy(got, before, sizeof(float) * (size_t)size);
        memset(scratch, 0xff, fy_product_scratch_bytes());
        kernels[n]->product(got, stride, rows, columns, depth, add, a.operand, b.operand, scratch);
        char what[128];
        snprintf(what, sizeof what, "%s %d x %d x %d, add %d, along k %d %d", kernels[n]->name, rows, columns, depth,
                 add, a_along_k, b_along_k);
        assert_same_bits(got, expected, size, what);
    }
    free(before);
    free(expected);
    free(got);
    free(a.memory);
    free(b.memory);
}

static void test_shapes(void **state) {
    (void)state;
    for (int columns = 0; columns <= 70; columns++) check_case(5, columns, 37, columns & 1, 1, 1, 0);
    for (int rows = 0; rows <= 45; rows++) check_case(rows, 33, 19, rows & 1, rows >> 1 & 1, rows >> 2 & 1, 0);
    for (int depth = 0; depth <= 70; depth++) check_case(3, 40, depth, depth & 1, depth >> 1 & 1, depth >> 2 & 1, 0);
    for (int add = 0; add < 2; add++) {
        check_case(FY_TILE_ROWS, FY_TILE_COLUMNS, 64, add, 1, 1, 0);
        check_case(FY_TILE_ROWS, FY_TILE_COLUMNS, 33, add, 0, 0, 0);
        check_case(29, 65, 1500, add, 1, 0, 0);
    }
}

static void test_random(void **state) {
    (void)state;
    for (int n = 0; n < 150; n++) {
        int large = n % 10 == 0;
        check_case(random_below(large ? FY_TILE_ROWS + 1 : 48), random_below(large ? FY_TILE_COLUMNS + 1 : 80),
                   random_below(large ? 90 : 700), random_below(2), random_below(2), random_below(2), n % 3 == 0);
    }
}

/* Operands and sums whose F32 results are denormal, overflow, or nearly tie. */
static void test_edges(void **state) {
    (void)state;
    for (int n = 0; n < 200; n++) {
        int rows = 4, columns = 18, depth = 24;
        matrix a = matrix_make(rows, depth, 1, 0), b = matrix_make(columns, depth, 1, 0);
        for (int64_t i = 0; i < rows * depth; i++) a.memory[1 + i] = (uint16_t)random_bits();
        for (int64_t i = 0; i < columns * depth; i++) b.memory[1 + i] = (uint16_t)random_bits();
        for (int k = 0; k < depth && n % 2; k++) /* products around the smallest denormal */
            for (int i = 0; i < columns; i++) {
                if (i < rows) *matrix_at(&a, i, k) = (uint16_t)(random_bits() & 0x87ff);
                *matrix_at(&b, i, k) = (uint16_t)((random_bits() & 0x83ff) + 0x3800);
            }
        float expected[4 * 18], got[4 * 18];
        for (int i = 0; i < rows * columns; i++) expected[i] = chain(&a, i / columns, &b, i % columns, 0.0f);
        for (int isa = 0; isa < kernels_count; isa++) {
            memset(got, 0xff, sizeof got);
            kernels[isa]->product(got, columns, rows, columns, depth, 0, a.operand, b.operand, scratch);
            assert_same_bits(got, expected, rows * columns, kernels[isa]->name);
        }
        free(a.memory);
        free(b.memory);
    }
}

/* A tile cut anywhere along rows, columns and depth has the bits of the whole. */
static void test_splits(void **state) {
    (void)state;
    for (int n = 0; n < 24; n++) {
        int rows = 1 + random_below(100), columns = 1 + random_below(100), depth = 1 + random_below(900);
        matrix a = matrix_make(rows, depth, random_below(2), 3), b = matrix_make(columns, depth, random_below(2), 1);
        int64_t size = (int64_t)rows * columns;
        float *whole = accumulators(size), *cut = accumulators(size);
        int row_cut = random_below(rows + 1), column_cut = random_below(columns + 1),
            depth_cut = random_below(depth + 1);
        for (int isa = 0; isa < kernels_count; isa++) {
            kernels[isa]->product(whole, columns, rows, columns, depth, 0, a.operand, b.operand, scratch);
            for (int part = 0; part < 8; part++) {
                int row = part & 1 ? row_cut : 0, row_end = part & 1 ? rows : row_cut;
                int column = part & 2 ? column_cut : 0, column_end = part & 2 ? columns : column_cut;
                int k = part & 4 ? depth_cut : 0, k_end = part & 4 ? depth : depth_cut;
                fy_operand pa = a.operand, pb = b.operand;
                pa.data += row * pa.i_stride + k * pa.k_stride;
                pb.data += column * pb.i_stride + k * pb.k_stride;
                kernels[isa]->product(cut + row * columns + column, columns, row_end - row, column_end - column,
                                      k_end - k, part >> 2, pa, pb, scratch);
            }
            assert_same_bits(cut, whole, size, kernels[isa]->name);
        }
        free(whole);
        free(cut);
        free(a.memory);
        free(b.memory);
    }
}

/* NaN in one row of A reaches that row only, in one row of B that column only. */
static void test_nan_stays(void **state) {
    (void)state;
    enum { ROWS = 31, COLUMNS = 45, DEPTH = 300 };
    matrix a = matrix_make(ROWS, DEPTH, 1, 0), b = matrix_make(COLUMNS, DEPTH, 0, 0);
    *matrix_at(&a, 17, 5) = 0xffff;
    *matrix_at(&b, 33, 299) = 0x7f81;
    static float acc[ROWS * COLUMNS];
    for (int isa = 0; isa < kernels_count; isa++) {
        memset(acc, 0, sizeof acc);
        kernels[isa]->product(acc, COLUMNS, ROWS, COLUMNS, DEPTH, 0, a.operand, b.operand, scratch);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) assert_int_equal(!!isnan(acc[i * COLUMNS + j]), i == 17 || j == 33);
    }
    free(a.memory);
    free(b.memory);
}

/* The value, not only the bits: relative error of unit-scale data against FP64. */
static void test_against_double(void **state) {
    (void)state;
    enum { ROWS = 20, COLUMNS = 50, DEPTH = 3000 };
    matrix a = matrix_make(ROWS, DEPTH, 1, 0), b = matrix_make(COLUMNS, DEPTH, 1, 0);
    static float acc[ROWS * COLUMNS];
    for (int isa = 0; isa < kernels_count; isa++) {
        double error = 0, scale = 0;
        memset(acc, 0xff, sizeof acc);
        kernels[isa]->product(acc, COLUMNS, ROWS, COLUMNS, DEPTH, 0, a.operand, b.operand, scratch);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                double sum = 0;
                for (int k = 0; k < DEPTH; k++) sum += (double)element(&a, i, k) * (double)element(&b, j, k);
                error += (sum - acc[i * COLUMNS + j]) * (sum - acc[i * COLUMNS + j]);
                scale += sum * sum;
            }
        assert_true(scale > 1e5);
        assert_true(sqrt(error / scale) < 3e-6);
    }
    free(a.memory);
    free(b.memory);
}

static void test_select(void **state) {
    (void)state;
    const fy_kernels *found = NULL;
    assert_int_equal(fy_kernels_select(FERRY_ISA_AUTO, &found), FERRY_OK);
    assert_ptr_equal(found, kernels[kernels_count - 1]);
    assert_int_equal(kernels[0]->isa, FERRY_ISA_PORTABLE);
    const fy_kernels *untouched = found;
    assert_int_equal(fy_kernels_select((ferry_isa)9, &untouched), FERRY_E_INVALID);
    assert_ptr_equal(untouched, found);
    assert_non_null(strstr(ferry_last_error(), "9"));
}

int main(void) {
    const char *seed = getenv("FERRY_TEST_SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    printf("FERRY_TEST_SEED=%llu\n", (unsigned long long)random_state);
    find_kernels();
    scratch = aligned_alloc(64, (fy_product_scratch_bytes() + 63) / 64 * 64);
    if (!scratch) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),         cmocka_unit_test(test_shapes), cmocka_unit_test(test_random),
        cmocka_unit_test(test_edges),          cmocka_unit_test(test_splits), cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_against_double),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(scratch);
    return failed;
}
