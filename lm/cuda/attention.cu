/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention with rotary positions: a block has one head of one sequence, with its queries, keys and values in
 * shared memory; a warp has a row. Rows of shared memory are one value longer than a head is deep, so that lanes that
 * read a column each use another bank. Four such arrays have to fit: a launch with longer sequences fails.
 */
#include "lm/cuda/warp.cuh"

enum { THREADS = 256, WARPS = THREADS / LM_WARP, SHARED_BYTES = 232448 };

struct attention {
    const float *cosine, *sine; /* [length, depth / 2] */
    int length, hidden, heads, depth;
};

/* Where this block's head begins in arrays over tokens with rows of `columns` values. */
LM_DEVICE int64_t head_at(const attention &t, int columns) {
    int sequence = blockIdx.x / t.heads, head = blockIdx.x % t.heads;
    return (int64_t)sequence * t.length * columns + head * t.depth;
}

/* [length][depth + 1] from rows of `columns` values. */
LM_DEVICE void load(const attention &t, float *to, const float *from, int columns) {
    for (int i = threadIdx.x; i < t.length * t.depth; i += THREADS) {
        int row = i / t.depth, d = i % t.depth;
        to[row * (t.depth + 1) + d] = from[(int64_t)row * columns + d];
    }
}

/* The value at place d of a vector that is turned to position `row`, or back from it with direction -1. */
LM_DEVICE float turned(const attention &t, const float *vector, int row, int d, float direction) {
    int half = t.depth / 2, i = d % half;
    float c = t.cosine[row * half + i], s = t.sine[row * half + i] * direction;
    return d < half ? vector[i] * c - vector[i + half] * s : vector[i + half] * c + vector[i] * s;
}

static __global__ void __launch_bounds__(THREADS) attend(attention t, float *out, float *p, float *qkv) {
    extern __shared__ float shared[];
    int row = t.depth + 1, warp = threadIdx.x / LM_WARP, lane = threadIdx.x % LM_WARP, size = t.length * row;
    float *q = shared, *k = q + size, *v = k + size, *chances = v + size + warp * t.length;
    float scale = 1.0f / sqrtf((float)t.depth);
    qkv += head_at(t, 3 * t.hidden);
    out += head_at(t, t.hidden);
    p += (int64_t)blockIdx.x * t.length * t.length;
    for (int i = threadIdx.x; i < t.length * t.depth; i += THREADS) {
        int n = i / t.depth, d = i % t.depth;
        const float *from = qkv + (int64_t)n * 3 * t.hidden;
        q[n * row + d] = turned(t, from, n, d, 1);
        k[n * row + d] = turned(t, from + t.hidden, n, d, 1);
        v[n * row + d] = from[2 * t.hidden + d];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < t.length * t.depth; i += THREADS) {
        int n = i / t.depth, d = i % t.depth;
        float *to = qkv + (int64_t)n * 3 * t.hidden + d;
        to[0] = q[n * row + d];
        to[t.hidden] = k[n * row + d];
    }
    for (int n = warp; n < t.length; n += WARPS) {
        float top = -INFINITY, sum = 0;
        for (int s = lane; s <= n; s += LM_WARP) {
            float x = 0;
            for (int d = 0; d < t.depth; d++) x += q[n * row + d] * k[s * row + d];
            chances[s] = x *= scale;
            top = fmaxf(top, x);
        }
        top = lm_warp_max(top);
        for (int s = lane; s <= n; s += LM_WARP) sum += chances[s] = expf(chances[s] - top);
        float factor = 1.0f / lm_warp_sum(sum);
        for (int s = lane; s < t.length; s += LM_WARP)
            p[(int64_t)n * t.length + s] = chances[s] = s <= n ? chances[s] * factor : 0;
        __syncwarp();
        for (int d = lane; d < t.depth; d += LM_WARP) {
            float y = 0;
            for (int s = 0; s <= n; s++) y += chances[s] * v[s * row + d];
            out[(int64_t)n * t.hidden + d] = y;
        }
        __syncwarp();
    }
}

/* ds [length, length] per block: the gradient of the scaled products of queries and keys. */
static __global__ void __launch_bounds__(THREADS)
    attend_back(attention t, float *dqkv, const float *dout, const float *p, const float *qkv, float *ds) {
    extern __shared__ float shared[];
    int row = t.depth + 1, warp = threadIdx.x / LM_WARP, lane = threadIdx.x % LM_WARP, size = t.length * row;
    float *q = shared, *k = q + size, *v = k + size, *dy = v + size;
    float *vector = dy + size + warp * (t.depth + t.length), *slopes = vector + t.depth;
    float scale = 1.0f / sqrtf((float)t.depth);
    qkv += head_at(t, 3 * t.hidden);
    dqkv += head_at(t, 3 * t.hidden);
    p += (int64_t)blockIdx.x * t.length * t.length;
    ds += (int64_t)blockIdx.x * t.length * t.length;
    load(t, q, qkv, 3 * t.hidden);
    load(t, k, qkv + t.hidden, 3 * t.hidden);
    load(t, v, qkv + 2 * t.hidden, 3 * t.hidden);
    load(t, dy, dout + head_at(t, t.hidden), t.hidden);
    __syncthreads();
    for (int n = warp; n < t.length; n += WARPS) { /* a query's row */
        float along = 0;
        for (int s = lane; s <= n; s += LM_WARP) {
            float x = 0;
            for (int d = 0; d < t.depth; d++) x += dy[n * row + d] * v[s * row + d];
            slopes[s] = x;
            along += x * p[(int64_t)n * t.length + s];
        }
        along = lm_warp_sum(along);
        for (int s = lane; s <= n; s += LM_WARP) {
            int64_t at = (int64_t)n * t.length + s;
            ds[at] = slopes[s] = p[at] * (slopes[s] - along) * scale;
        }
        __syncwarp();
        for (int d = lane; d < t.depth; d += LM_WARP) {
            float x = 0;
            for (int s = 0; s <= n; s++) x += slopes[s] * k[s * row + d];
            vector[d] = x;
        }
        __syncwarp();
        for (int d = lane; d < t.depth; d += LM_WARP) dqkv[(int64_t)n * 3 * t.hidden + d] = turned(t, vector, n, d, -1);
        __syncwarp();
    }
    __syncthreads();
    for (int s = warp; s < t.length; s += WARPS) { /* a key's row */
        float *to = dqkv + (int64_t)s * 3 * t.hidden;
        for (int d = lane; d < t.depth; d += LM_WARP) {
            float x = 0, y = 0;
            for (int n = s; n < t.length; n++) {
                x += ds[(int64_t)n * t.length + s] * q[n * row + d];
                y += p[(int64_t)n * t.length + s] * dy[n * row + d];
            }
            vector[d] = x;
            to[2 * t.hidden + d] = y;
        }
        __syncwarp();
        for (int d = lane; d < t.depth; d += LM_WARP) to[t.hidden + d] = turned(t, vector, s, d, -1);
        __syncwarp();
    }
}

static attention describe(const lm_attention *a) {
    return {a->cosine, a->sine, (int)a->length, (int)a->hidden, (int)a->heads, (int)(a->hidden / a->heads)};
}

static size_t shared_bytes(int64_t length, int64_t depth) {
    return (size_t)(4 * length * (depth + 1) + WARPS * (depth + length)) * sizeof(float);
}

void lm_cuda_attend(const lm_attention *a, float *out, float *p, float *qkv, int64_t sequences) {
    if (sequences == 0) return;
    attention t = describe(a);
    attend<<<(unsigned)(sequences * t.heads), THREADS, shared_bytes(t.length, t.depth), lm_cuda_stream()>>>(t, out, p,
                                                                                                            qkv);
}

void lm_cuda_attend_back(const lm_attention *a, float *dqkv, const float *dout, const float *p, const float *qkv,
                         int64_t sequences) {
    attention t = describe(a);
    attend_back<<<(unsigned)(sequences * t.heads), THREADS, shared_bytes(t.length, t.depth), lm_cuda_stream()>>>(
        t, dqkv, dout, p, qkv, a->scratch);
}

cudaError_t lm_cuda_load_attention(void) {
    cudaError_t error = cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(attend_back, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    return error == cudaSuccess ? lm_load(attend, attend_back) : error;
}
