/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 product kernel against OpenBLAS SGEMM, on one core, on the same products: x W^T, with both operands
 * contiguous along k. Repetitions of the two alternate; rates are medians over processor time, so that other work on
 * the machine counts less. Ends with 1 when a product is below the bar or when OpenBLAS does not run its AVX-512
 * kernels, with 2 when there is nothing to compare.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "cpu/product.h"
#include "rules/bf16.h"

#define BAR 0.60
enum { REPETITIONS = 7, ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

static sgemm_function *sgemm;
static const char *core_name;

static int load_openblas(void) {
    /* Releases older than a processor take it for one without AVX-512, so its kernels are asked for by name. */
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
    unsetenv("OPENBLAS_L2_SIZE");
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    char *(*corename)(void) = (char *(*)(void))dlsym(library, "openblas_get_corename");
    sgemm = (sgemm_function *)dlsym(library, "cblas_sgemm");
    if (!corename || !sgemm) return 0;
    core_name = corename();
    return 1;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *get(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "product_openblas: out of memory (%zu bytes)\n", bytes);
        exit(2);
    }
    return memory;
}

/* BF16 values around 0 of about unit scale, and the same in F32. */
static void fill(uint16_t *narrow, float *wide, int64_t count) {
    uint32_t state = 12345;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        narrow[i] = fy_bf16_from_f32(((float)(state >> 8) * 0x1p-24f - 0.5f) * 3.4f);
        wide[i] = fy_bf16_to_f32(narrow[i]);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, REPETITIONS, sizeof *values, ascending);
    return values[REPETITIONS / 2];
}

static void multiply(const fy_kernels *kernels, float *c, int m, int n, int k, const uint16_t *a, const uint16_t *b,
                     void *scratch) {
    for (int row = 0; row < m; row += FY_TILE_ROWS)
        for (int column = 0; column < n; column += FY_TILE_COLUMNS) {
            int rows = m - row < FY_TILE_ROWS ? m - row : FY_TILE_ROWS;
            int columns = n - column < FY_TILE_COLUMNS ? n - column : FY_TILE_COLUMNS;
            fy_operand tile_a = {a + (int64_t)row * k, k, 1}, tile_b = {b + (int64_t)column * k, k, 1};
            kernels->product(c + (int64_t)row * n + column, n, rows, columns, k, 0, tile_a, tile_b, scratch);
        }
}

/* Returns the ratio of rates, ours to theirs. */
static double compare(const fy_kernels *kernels, int m, int n, int k) {
    uint16_t *a = get(sizeof(uint16_t) * (size_t)m * k), *b = get(sizeof(uint16_t) * (size_t)n * k);
    float *wide_a = get(sizeof(float) * (size_t)m * k), *wide_b = get(sizeof(float) * (size_t)n * k);
    float *ours = get(sizeof(float) * (size_t)m * n), *theirs = get(sizeof(float) * (size_t)m * n);
    void *scratch = get(fy_product_scratch_bytes());
    double our_time[REPETITIONS], their_time[REPETITIONS];
    fill(a, wide_a, (int64_t)m * k);
    fill(b, wide_b, (int64_t)n * k);
    for (int i = -1; i < REPETITIONS; i++) { /* -1 warms up */
        double start = seconds();
        multiply(kernels, ours, m, n, k, a, b, scratch);
        double middle = seconds();
        sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1.0f, wide_a, k, wide_b, k, 0.0f, theirs, n);
        double end = seconds();
        if (i < 0) continue;
        our_time[i] = middle - start;
        their_time[i] = end - middle;
    }
    double error = 0, scale = 0;
    for (int64_t i = 0; i < (int64_t)m * n; i++) {
        error += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        scale += (double)theirs[i] * theirs[i];
    }
    double flop = 2.0 * m * n * k, our_rate = flop / median(our_time), their_rate = flop / median(their_time);
    int agree = sqrt(error / scale) < 1e-5;
    printf("%5d x %5d x %5d: %6.1f GFLOP/s, OpenBLAS %6.1f GFLOP/s, ratio %.3f%s\n", m, n, k, our_rate * 1e-9,
           their_rate * 1e-9, our_rate / their_rate, agree ? "" : ", RESULTS DIFFER");
    free(a);
    free(b);
    free(wide_a);
    free(wide_b);
    free(ours);
    free(theirs);
    free(scratch);
    return agree ? our_rate / their_rate : 0.0;
}

int main(void) {
    const fy_kernels *kernels;
    if (fy_kernels_select(FERRY_ISA_AVX512, &kernels) != FERRY_OK) {
        fprintf(stderr, "product_openblas: %s\n", ferry_last_error());
        return 2;
    }
    if (!load_openblas()) {
        fprintf(stderr, "product_openblas: no usable libopenblas.so.0 here; install OpenBLAS to run this comparison\n");
        return 2;
    }
    printf("OpenBLAS core type %s\n", core_name);
    if (strcasecmp(core_name, "SkylakeX") != 0) {
        fprintf(stderr,
                "product_openblas: core type %s instead of SkylakeX; without AVX-512 kernels there is nothing "
                "to compare with\n",
                core_name);
        return 1;
    }
    static const int depths[] = {7168, 2048, 512};
    int below = 0;
    for (int i = 0; i < 3; i++) below += compare(kernels, 2048, 2048, depths[i]) < BAR;
    printf("%s: the bar is %.2f\n", below ? "BELOW" : "reached", BAR);
    return below ? 1 : 0;
}
