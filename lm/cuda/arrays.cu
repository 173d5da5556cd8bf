/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on whole arrays: conversions, sums in one fixed order, counts, the optimizer. */
#include "lm/cuda/warp.cuh"

extern "C" {
#include "lm/adamw.h"
}

enum { THREADS = 256, SUM_THREADS = 1024 };

#define FOR_EACH(i, count)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (int64_t)gridDim.x * blockDim.x)

#define LAUNCH(kernel, count, ...)                                                                                     \
    do {                                                                                                               \
        if ((count) > 0) kernel<<<lm_blocks(count, THREADS), THREADS, 0, lm_cuda_stream()>>>(__VA_ARGS__);             \
    } while (0)

/* ---- Element by element ---- */

static __global__ void round_all(uint16_t *to, const float *from, int64_t count) {
    FOR_EACH(i, count) {
        uint32_t bits = __float_as_uint(from[i]);
        bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
        to[i] = (uint16_t)(number ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u);
    }
}

static __global__ void add_bf16(float *to, const float *a, const uint16_t *b, int64_t count) {
    FOR_EACH(i, count) to[i] = a[i] + __uint_as_float((uint32_t)b[i] << 16);
}

template <typename T>
static __global__ void add(T *to, const T *from, int64_t count) {
    FOR_EACH(i, count) to[i] += from[i];
}

static __global__ void balance(float *pull, double *load, const double *counts, int64_t count, double weight,
                               double tokens, double slots) {
    FOR_EACH(i, count) {
        load[i] += counts[i];
        pull[i] = (float)(weight * (counts[i] / (tokens * slots)) / tokens);
    }
}

static __global__ void adamw(lm_adamw_factors f, double clip, float *value, float *moment1, float *moment2,
                             const float *gradient, int64_t count, const double *squares) {
    double norm = sqrt(*squares);
    float scale = (float)(norm > clip ? clip / norm : 1);
    FOR_EACH(i, count) {
        float g = gradient[i] * scale;
        float m = f.keep1 * moment1[i] + (1.0f - f.keep1) * g;
        float v = f.keep2 * moment2[i] + (1.0f - f.keep2) * (g * g);
        moment1[i] = m;
        moment2[i] = v;
        value[i] = value[i] * f.shrink - f.rate * m / (sqrtf(v * f.rescale2) + 1e-8f);
    }
}

void lm_cuda_round(uint16_t *to, const float *from, int64_t count) { LAUNCH(round_all, count, to, from, count); }

void lm_cuda_add_bf16(float *to, const float *a, const uint16_t *b, int64_t count) {
    LAUNCH(add_bf16, count, to, a, b, count);
}

void lm_cuda_add(float *to, const float *from, int64_t count) { LAUNCH(add<float>, count, to, from, count); }

void lm_cuda_add_doubles(double *to, const double *from, int64_t count) { LAUNCH(add<double>, count, to, from, count); }

void lm_cuda_balance(float *pull, double *load, const double *counts, int64_t count, double weight, double tokens,
                     double slots) {
    LAUNCH(balance, count, pull, load, counts, count, weight, tokens, slots);
}

void lm_cuda_adamw(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
                   const float *gradient, int64_t count, const double *squares, int decays) {
    lm_adamw_factors factors = lm_adamw_factors_of(config, step, decays);
    LAUNCH(adamw, count, factors, config->clip, value, moment1, moment2, gradient, count, squares);
}

/* ---- Sums ---- */

static __global__ void add_up(double *to, const double *from, int64_t count) {
    double sum = *to;
    for (int64_t i = 0; i < count; i++) sum += from[i];
    *to = sum;
}

/* A block has a sum: every thread adds up its own elements, then halves are folded. */
static __global__ void __launch_bounds__(SUM_THREADS) square_sums(double *to, const float *x, int64_t count) {
    __shared__ double sums[SUM_THREADS];
    int thread = threadIdx.x;
    double sum = 0;
    x += blockIdx.x * count;
    for (int64_t i = thread; i < count; i += SUM_THREADS) sum += (double)x[i] * (double)x[i];
    sums[thread] = sum;
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) sums[thread] += sums[thread + half];
    }
    if (thread == 0) to[blockIdx.x] += sums[0];
}

/* A block has an expert in a part. Whole numbers: their order does not matter. */
static __global__ void count_ids(double *counts, int64_t stride, const int32_t *ids, int64_t slots) {
    __shared__ int all;
    int own = 0;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    ids += blockIdx.y * slots;
    for (int64_t i = threadIdx.x; i < slots; i += THREADS) own += ids[i] == (int)blockIdx.x;
    atomicAdd(&all, own);
    __syncthreads();
    if (threadIdx.x == 0) counts[blockIdx.y * stride + blockIdx.x] = all;
}

void lm_cuda_add_up(double *to, const double *from, int64_t count) {
    add_up<<<1, 1, 0, lm_cuda_stream()>>>(to, from, count);
}

void lm_cuda_square_sums(double *to, const float *x, int64_t count, int64_t sums) {
    square_sums<<<(unsigned)sums, SUM_THREADS, 0, lm_cuda_stream()>>>(to, x, count);
}

void lm_cuda_count(double *counts, lm_parts parts, const int32_t *ids, int64_t slots, int64_t experts) {
    dim3 grid((unsigned)experts, (unsigned)parts.count);
    count_ids<<<grid, THREADS, 0, lm_cuda_stream()>>>(counts, parts.stride, ids, parts.rows * slots);
}

cudaError_t lm_cuda_load_arrays(void) {
    return lm_load(round_all, add_bf16, add<float>, add<double>, balance, adamw, add_up, square_sums, count_ids);
}
