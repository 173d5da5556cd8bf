/* SPDX-License-Identifier: Apache-2.0 */
/* Operations row by row: embedding, RMS norm, the router's choice, cross-entropy. A warp has a row, or a thread does.
 */
#include "lm/cuda/warp.cuh"

enum { THREADS = 256, WARPS = THREADS / LM_WARP };

/* ---- Embedding ---- */

static __global__ void embed(float *x, const float *table, const unsigned char *bytes, int64_t count, int width) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) x[i] = table[bytes[i / width] * width + i % width];
}

/* A block has one byte's row in one part: the rows of dx where the byte stands, in their order. */
static __global__ void embed_back(float *dtable, int64_t stride, const float *dx, const unsigned char *bytes, int rows,
                                  int width) {
    bytes += (int64_t)blockIdx.y * rows;
    dx += (int64_t)blockIdx.y * rows * width;
    float *to = dtable + blockIdx.y * stride + blockIdx.x * width;
    for (int j = threadIdx.x; j < width; j += blockDim.x) {
        float sum = to[j];
        for (int i = 0; i < rows; i++) {
            if (bytes[i] == blockIdx.x) sum += dx[(int64_t)i * width + j];
        }
        to[j] = sum;
    }
}

void lm_cuda_embed(float *x, const float *table, const unsigned char *bytes, int64_t rows, int64_t width) {
    if (rows == 0) return;
    embed<<<lm_blocks(rows * width, THREADS), THREADS, 0, lm_cuda_stream()>>>(x, table, bytes, rows * width,
                                                                              (int)width);
}

void lm_cuda_embed_back(float *dtable, lm_parts parts, const float *dx, const unsigned char *bytes, int64_t width) {
    embed_back<<<dim3(LM_BYTES, (unsigned)parts.count), 128, 0, lm_cuda_stream()>>>(dtable, parts.stride, dx, bytes,
                                                                                    (int)parts.rows, (int)width);
}

/* ---- RMS norm ---- */

static __global__ void norm_rows(float *y, float *scale, const float *x, const float *gain, int rows, int width) {
    int row = blockIdx.x * WARPS + threadIdx.x / LM_WARP, lane = threadIdx.x % LM_WARP;
    if (row >= rows) return;
    x += (int64_t)row * width;
    y += (int64_t)row * width;
    float sum = 0;
    for (int j = lane; j < width; j += LM_WARP) sum += x[j] * x[j];
    float s = 1.0f / sqrtf(lm_warp_sum(sum) / (float)width + 1e-5f);
    for (int j = lane; j < width; j += LM_WARP) y[j] = x[j] * s * gain[j];
    if (lane == 0) scale[row] = s;
}

static __global__ void norm_back(float *dx, const float *dy, const float *x, const float *scale, const float *gain,
                                 int rows, int width) {
    int row = blockIdx.x * WARPS + threadIdx.x / LM_WARP, lane = threadIdx.x % LM_WARP;
    if (row >= rows) return;
    x += (int64_t)row * width;
    dx += (int64_t)row * width;
    dy += (int64_t)row * width;
    float s = scale[row], sum = 0;
    for (int j = lane; j < width; j += LM_WARP) sum += x[j] * (dy[j] * gain[j]);
    float along = lm_warp_sum(sum) * s * s / (float)width;
    for (int j = lane; j < width; j += LM_WARP) dx[j] += s * (dy[j] * gain[j] - x[j] * along);
}

/* A block has 32 columns of one part: thread row n adds up rows n, n + WARPS and so on; thread row 0 adds these up. */
static __global__ void norm_gain(float *dgain, int64_t stride, const float *dy, const float *x, const float *scale,
                                 int rows, int width) {
    __shared__ float sums[WARPS][LM_WARP];
    int column = blockIdx.x * LM_WARP + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * rows;
    float sum = 0;
    for (int i = threadIdx.y; i < rows && column < width; i += WARPS) {
        int64_t at = (first + i) * width + column;
        sum += dy[at] * x[at] * scale[first + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width) return;
    float *to = dgain + blockIdx.y * stride + column;
    for (int n = 1; n < WARPS; n++) sum += sums[n][threadIdx.x];
    *to += sum;
}

void lm_cuda_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t width) {
    if (rows == 0) return;
    norm_rows<<<lm_blocks(rows, WARPS), THREADS, 0, lm_cuda_stream()>>>(y, scale, x, gain, (int)rows, (int)width);
}

void lm_cuda_norm_back(float *dx, float *dgain, lm_parts parts, const float *dy, const float *x, const float *scale,
                       const float *gain, int64_t width) {
    int64_t rows = parts.count * parts.rows;
    norm_back<<<lm_blocks(rows, WARPS), THREADS, 0, lm_cuda_stream()>>>(dx, dy, x, scale, gain, (int)rows, (int)width);
    dim3 grid(lm_blocks(width, LM_WARP), (unsigned)parts.count);
    norm_gain<<<grid, dim3(LM_WARP, WARPS), 0, lm_cuda_stream()>>>(dgain, parts.stride, dy, x, scale, (int)parts.rows,
                                                                   (int)width);
}

/* ---- The router: a thread has a token ---- */

/* The most probable expert that is not among the `taken` first ids; the lower one of equals. */
LM_DEVICE int best_left(const float *p, int experts, const int32_t *ids, int taken) {
    int best = -1;
    for (int e = 0; e < experts; e++) {
        bool used = false;
        for (int k = 0; k < taken; k++) used |= ids[k] == e;
        if (!used && (best < 0 || p[e] > p[best])) best = e;
    }
    return best;
}

static __global__ void choose(float *p, int32_t *ids, float *weights, int tokens, int experts, int slots) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;
    p += (int64_t)token * experts;
    ids += (int64_t)token * slots;
    weights += (int64_t)token * slots;
    float top = p[0], sum = 0, chosen = 0;
    for (int e = 1; e < experts; e++) top = fmaxf(top, p[e]);
    for (int e = 0; e < experts; e++) sum += p[e] = expf(p[e] - top);
    for (int e = 0; e < experts; e++) p[e] *= 1.0f / sum;
    for (int k = 0; k < slots; k++) {
        /* Logits that are not numbers leave nothing to compare; the step's loss says so. */
        ids[k] = best_left(p, experts, ids, k);
        chosen += p[ids[k]];
    }
    for (int k = 0; k < slots; k++) weights[k] = p[ids[k]] / chosen;
}

static __global__ void choose_back(float *dlogits, const float *dweights, const float *p, const int32_t *ids,
                                   const float *weights, const float *pull, int tokens, int experts, int slots) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;
    dlogits += (int64_t)token * experts;
    p += (int64_t)token * experts;
    ids += (int64_t)token * slots;
    weights += (int64_t)token * slots;
    dweights += (int64_t)token * slots;
    float chosen = 0, along = 0, all = 0;
    for (int k = 0; k < slots; k++) {
        chosen += p[ids[k]];
        along += dweights[k] * weights[k];
    }
    for (int e = 0; e < experts; e++) dlogits[e] = pull[e];
    for (int k = 0; k < slots; k++) dlogits[ids[k]] += (dweights[k] - along) / chosen;
    for (int e = 0; e < experts; e++) all += dlogits[e] * p[e];
    for (int e = 0; e < experts; e++) dlogits[e] = p[e] * (dlogits[e] - all);
}

void lm_cuda_choose(const lm_router *router, float *p, int32_t *ids, float *weights, int64_t tokens) {
    if (tokens == 0) return;
    choose<<<lm_blocks(tokens, 64), 64, 0, lm_cuda_stream()>>>(p, ids, weights, (int)tokens, (int)router->experts,
                                                               (int)router->slots);
}

void lm_cuda_choose_back(const lm_router *router, float *dlogits, const float *dweights, const float *p,
                         const int32_t *ids, const float *weights, const float *pull, int64_t tokens) {
    choose_back<<<lm_blocks(tokens, 64), 64, 0, lm_cuda_stream()>>>(
        dlogits, dweights, p, ids, weights, pull, (int)tokens, (int)router->experts, (int)router->slots);
}

/* ---- Cross-entropy ---- */

/* A block has a part. Its warps take rows in turn, each adds up the losses of its own, and thread 0 adds up these. */
static __global__ void cross_entropy(double *sums, int64_t stride, float *logits, const unsigned char *target, int rows,
                                     float scale) {
    enum { OWN = LM_BYTES / LM_WARP };
    __shared__ double losses[LM_WARP];
    int warp = threadIdx.x / LM_WARP, lane = threadIdx.x % LM_WARP, warps = blockDim.x / LM_WARP;
    double loss = 0;
    for (int i = warp; i < rows; i += warps) {
        int64_t at = (int64_t)blockIdx.x * rows + i;
        float *row = logits + at * LM_BYTES, x[OWN], sum = 0;
        int wanted = target[at];
        float said = row[wanted];
#pragma unroll
        for (int n = 0; n < OWN; n++) x[n] = row[n * LM_WARP + lane];
        float top = x[0];
#pragma unroll
        for (int n = 1; n < OWN; n++) top = fmaxf(top, x[n]);
        top = lm_warp_max(top);
#pragma unroll
        for (int n = 0; n < OWN; n++) sum += x[n] = expf(x[n] - top);
        sum = lm_warp_sum(sum);
        loss += log((double)sum) + (double)top - (double)said;
        float factor = scale > 0 ? scale / sum : 1.0f / sum;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            int j = n * LM_WARP + lane;
            row[j] = x[n] * factor - (j == wanted ? scale : 0);
        }
    }
    if (lane == 0) losses[warp] = loss;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int n = 1; n < warps; n++) loss += losses[n];
    sums[blockIdx.x * stride] += loss;
}

void lm_cuda_cross_entropy(double *sums, lm_parts parts, float *logits, const unsigned char *target, float scale) {
    cross_entropy<<<(unsigned)parts.count, LM_WARP * LM_WARP, 0, lm_cuda_stream()>>>(sums, parts.stride, logits, target,
                                                                                     (int)parts.rows, scale);
}

cudaError_t lm_cuda_load_rows(void) {
    return lm_load(embed, embed_back, norm_rows, norm_back, norm_gain, choose, choose_back, cross_entropy);
}
