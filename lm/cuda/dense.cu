/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dense products, in F32 on the ordinary units: the model is small, and so every element is the chain of
 * lm/matmul.c, one product and one sum at a time in ascending order of depth, with the same bits.
 */
#include "lm/cuda/warp.cuh"

enum { TILE = 64, STEP = 16, THREADS = 256, OWN = 4 /* a thread has 4 x 4 elements of a tile */ };

/* c[i][j] = (add ? c[i][j] : 0) + sum over p of a(i, p) b[p][j], for each part. Rows of c and b are contiguous. */
struct product {
    float *c;
    const float *a, *b;
    int rows, columns, depth, add;
    int64_t c_part, a_part, b_part; /* from one part to the next */
};

/* TURNED: a(i, p) = a[p * rows + i], otherwise a[i * depth + p]. Zero beyond the edges. */
template <bool TURNED>
LM_DEVICE float element(const product &t, const float *a, int i, int p) {
    if (i >= t.rows || p >= t.depth) return 0;
    return TURNED ? a[(int64_t)p * t.rows + i] : a[(int64_t)i * t.depth + p];
}

template <bool TURNED>
static __global__ void __launch_bounds__(THREADS) multiply(product t) {
    __shared__ float left[STEP][TILE + 4], right[STEP][TILE];
    int thread = threadIdx.x, row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int i = row + thread / 16 * OWN, j = column + thread % 16 * OWN;
    float *c = t.c + blockIdx.z * t.c_part;
    const float *a = t.a + blockIdx.z * t.a_part, *b = t.b + blockIdx.z * t.b_part;
    float sum[OWN][OWN];
#pragma unroll
    for (int y = 0; y < OWN; y++) {
#pragma unroll
        for (int x = 0; x < OWN; x++)
            sum[y][x] = t.add && i + y < t.rows && j + x < t.columns ? c[(int64_t)(i + y) * t.columns + j + x] : 0;
    }
    for (int p = 0; p < t.depth; p += STEP) {
        for (int n = thread; n < STEP * TILE; n += THREADS) {
            int at = TURNED ? n / TILE : n % STEP, to = TURNED ? n % TILE : n / STEP;
            left[at][to] = element<TURNED>(t, a, row + to, p + at);
            int deep = p + n / TILE, across = column + n % TILE;
            right[n / TILE][n % TILE] =
                deep < t.depth && across < t.columns ? b[(int64_t)deep * t.columns + across] : 0;
        }
        __syncthreads();
        int steps = min((int)STEP, t.depth - p);
        for (int k = 0; k < steps; k++) {
            float4 u = *(const float4 *)&left[k][thread / 16 * OWN], v = *(const float4 *)&right[k][thread % 16 * OWN];
            float us[OWN] = {u.x, u.y, u.z, u.w}, vs[OWN] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int y = 0; y < OWN; y++) {
#pragma unroll
                for (int x = 0; x < OWN; x++) sum[y][x] += us[y] * vs[x];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int y = 0; y < OWN; y++) {
#pragma unroll
        for (int x = 0; x < OWN; x++) {
            if (i + y < t.rows && j + x < t.columns) c[(int64_t)(i + y) * t.columns + j + x] = sum[y][x];
        }
    }
}

/* to[j][i] = from[i][j] */
static __global__ void turn(float *to, const float *from, int rows, int columns) {
    __shared__ float tile[LM_WARP][LM_WARP + 1];
    int row = blockIdx.y * LM_WARP, column = blockIdx.x * LM_WARP;
    if (row + threadIdx.y < rows && column + threadIdx.x < columns)
        tile[threadIdx.y][threadIdx.x] = from[(int64_t)(row + threadIdx.y) * columns + column + threadIdx.x];
    __syncthreads();
    if (column + threadIdx.y < columns && row + threadIdx.x < rows)
        to[(int64_t)(column + threadIdx.y) * rows + row + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

void lm_cuda_linear(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, int add) {
    if (rows == 0) return;
    product t = {y, x, w, (int)rows, (int)out, (int)in, add, 0, 0, 0};
    multiply<false><<<dim3(lm_blocks(out, TILE), lm_blocks(rows, TILE)), THREADS, 0, lm_cuda_stream()>>>(t);
}

void lm_cuda_linear_back(float *dw, lm_parts parts, const float *dy, const float *x, int64_t in, int64_t out) {
    product t = {dw, x, dy, (int)in, (int)out, (int)parts.rows, 1, parts.stride, parts.rows * in, parts.rows * out};
    dim3 grid(lm_blocks(out, TILE), lm_blocks(in, TILE), (unsigned)parts.count);
    multiply<true><<<grid, THREADS, 0, lm_cuda_stream()>>>(t);
}

void lm_cuda_transpose(float *to, const float *from, int64_t rows, int64_t columns) {
    dim3 grid(lm_blocks(columns, LM_WARP), lm_blocks(rows, LM_WARP));
    turn<<<grid, dim3(LM_WARP, LM_WARP), 0, lm_cuda_stream()>>>(to, from, (int)rows, (int)columns);
}

cudaError_t lm_cuda_load_dense(void) { return lm_load(multiply<false>, multiply<true>, turn); }
