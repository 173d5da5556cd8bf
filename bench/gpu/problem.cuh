/* SPDX-License-Identifier: Apache-2.0 */
/* Random problems on the device and their FP64 answers, for the checks and timings of this folder. */
#ifndef FERRY_BENCH_GPU_PROBLEM_CUH
#define FERRY_BENCH_GPU_PROBLEM_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                              \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __host__ __device__ inline uint32_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return (uint32_t)x;
}

/* About normal, of the given scale. */
static __host__ __device__ inline float noise(uint64_t seed, uint64_t i) {
    float sum = 0;
    for (int q = 0; q < 4; q++) sum += (float)(mix(seed * 0x9e3779b97f4a7c15ull + i * 4 + q) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

static __global__ void fill_noise(__nv_bfloat16 *p, int64_t n, uint64_t seed, float scale) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        p[i] = __float2bfloat16(noise(seed, i) * scale);
}

static __device__ inline double round_bf16(double v) { return (double)__bfloat162float(__float2bfloat16((float)v)); }

static __device__ double warp_dot(const __nv_bfloat16 *a, const __nv_bfloat16 *b, int n) {
    double s = 0;
    for (int i = threadIdx.x & 31; i < n; i += 32) s += (double)__bfloat162float(a[i]) * (double)__bfloat162float(b[i]);
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
    return s;
}

/* h[(t, k)][i] for the tokens listed; k == slots: the shared expert. One warp per value. */
static __global__ void answer_h(double *h, const int *list, int count, const __nv_bfloat16 *x, const int64_t *ids,
                                const __nv_bfloat16 *gate, const __nv_bfloat16 *up, const __nv_bfloat16 *sgate,
                                const __nv_bfloat16 *sup, int H, int I, int S, int E, int K, int W, float limit,
                                int points) {
    int64_t all = (int64_t)count * (K + 1) * W;
    for (int64_t v = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32; v < all;
         v += (int64_t)gridDim.x * blockDim.x / 32) {
        int i = v % W, k = v / W % (K + 1), j = v / W / (K + 1);
        int64_t t = list[j], id = k < K ? ids[t * K + k] : 0;
        double r = 0;
        if (k < K && id >= 0 && id < E && i < I) {
            double g = warp_dot(x + t * H, gate + (id * I + i) * H, H),
                   u = warp_dot(x + t * H, up + (id * I + i) * H, H);
            if (limit > 0) {
                g = g > limit ? limit : g;
                u = u > limit ? limit : u < -limit ? -limit : u;
            }
            r = g / (1 + exp(-g)) * u;
        } else if (k == K && i < S) {
            double g = warp_dot(x + t * H, sgate + (int64_t)i * H, H), u = warp_dot(x + t * H, sup + (int64_t)i * H, H);
            if (limit > 0) {
                g = g > limit ? limit : g;
                u = u > limit ? limit : u < -limit ? -limit : u;
            }
            r = g / (1 + exp(-g)) * u;
        }
        if ((threadIdx.x & 31) == 0) h[v] = points ? round_bf16(r) : r;
    }
}

static __global__ void answer_out(double *out, const double *h, const int *list, int count, const int64_t *ids,
                                  const float *weights, const __nv_bfloat16 *down, const __nv_bfloat16 *sdown, int H,
                                  int I, int S, int E, int K, int W, int points) {
    int lane = threadIdx.x & 31;
    int64_t all = (int64_t)count * H;
    for (int64_t v = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32; v < all;
         v += (int64_t)gridDim.x * blockDim.x / 32) {
        int c = v % H, j = v / H;
        int64_t t = list[j];
        double sum = 0;
        for (int q = 0; q <= K; q++) {
            int k = q == 0 ? K : q - 1; /* the shared expert first */
            int64_t id = k < K ? ids[t * K + k] : 0;
            if (k < K ? (id < 0 || id >= E) : S == 0) continue;
            int n = k < K ? I : S;
            const __nv_bfloat16 *w = k < K ? down + (id * H + c) * I : sdown + (int64_t)c * S;
            const double *row = h + ((int64_t)j * (K + 1) + k) * W;
            double y = 0;
            for (int i = lane; i < n; i += 32) y += row[i] * (double)__bfloat162float(w[i]);
            for (int d = 16; d; d /= 2) y += __shfl_xor_sync(0xffffffffu, y, d);
            if (points) y = round_bf16(y);
            sum += (k < K ? (double)weights[t * K + k] : 1.0) * y;
        }
        if (lane == 0) out[v] = points ? round_bf16(sum) : sum;
    }
}

#endif
