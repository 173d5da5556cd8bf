/* SPDX-License-Identifier: Apache-2.0 */
/* A warp copies a row with 16-byte loads that are all on their way before the first store, as the layer's pulls do. */
#include "cli/bench_micro_kernels.h"

#include "cuda/prim_memory.cuh"

enum { COPY_THREADS = 512, LOADS = 7, TALK_THREADS = 256 };

__global__ void micro_fill_kernel(uint32_t *memory, int rows, int words) {
    int64_t count = (int64_t)rows * words, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        memory[i] = (uint32_t)(i / words) * 2654435761u + (uint32_t)(i % words);
}

FY_DEVICE void copy_row(const uint4 *from, uint4 *to, int chunks, int lane) {
    for (int first = lane; first < chunks; first += 32 * LOADS) {
        uint4 held[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (first + 32 * i < chunks) held[i] = __ldcg(from + first + 32 * i);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (first + 32 * i < chunks) to[first + 32 * i] = held[i];
    }
}

__global__ void __launch_bounds__(COPY_THREADS) micro_copy_kernel(const __grid_constant__ micro_copy c) {
    int warp = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = (int)(gridDim.x * blockDim.x) / 32;
    for (int i = warp; i < c.rows; i += warps) {
        const char *from = (const char *)c.from[i % c.peers] + (int64_t)c.from_row[i] * c.row_bytes;
        char *to = (char *)c.to[i % c.peers] + (int64_t)c.to_row[i] * c.row_bytes;
        copy_row((const uint4 *)from, (uint4 *)to, c.row_bytes / 16, threadIdx.x & 31);
    }
}

__global__ void micro_compare_kernel(const __grid_constant__ micro_copy c, uint32_t *wrong) {
    for (int i = blockIdx.x; i < c.rows; i += gridDim.x) {
        const char *from = (const char *)c.from[i % c.peers] + (int64_t)c.from_row[i] * c.row_bytes;
        const char *to = (const char *)c.to[i % c.peers] + (int64_t)c.to_row[i] * c.row_bytes;
        for (int w = threadIdx.x; w < c.row_bytes / 4; w += blockDim.x)
            if (((const uint32_t *)from)[w] != ((const uint32_t *)to)[w]) atomicAdd(wrong, 1u);
    }
}

/* Until *flag has reached `count`; 0 when that takes a second. */
FY_DEVICE int await(const uint32_t *flag, uint32_t count, int one_device) {
    const uint64_t most_ns = 1000000000;
    uint64_t start = fy_now();
    while ((int32_t)((one_device ? fy_load_acquire_gpu(flag) : fy_load_acquire_sys(flag)) - count) < 0)
        if (fy_now() - start > most_ns) return 0;
    return 1;
}

FY_DEVICE void raise(uint32_t *flag, uint32_t count, int one_device) {
    if (one_device)
        fy_add_release_gpu(flag, 1);
    else
        fy_store_release_sys(flag, count);
}

FY_DEVICE void speak(const micro_signal &s) {
    uint64_t start = fy_now();
    int good = 1;
    for (int turn = 1; turn <= s.turns; turn++) {
#pragma unroll 4
        for (int i = threadIdx.x; i < s.bytes / 16; i += TALK_THREADS)
            ((uint4 *)s.to)[i] = __ldcg((const uint4 *)s.from + i);
        __syncthreads();
        if (s.heard && threadIdx.x == 0 && good) {
            raise(s.heard, s.first + (uint32_t)turn, s.one_device);
            good = await(s.answered, s.first + (uint32_t)turn, s.one_device);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *s.ns = good ? fy_now() - start : 0;
}

FY_DEVICE void listen(const micro_signal &s) {
    if (threadIdx.x != 0) return;
    for (int turn = 1; turn <= s.turns; turn++) {
        if (!await(s.heard, s.first + (uint32_t)turn, s.one_device)) return;
        raise(s.answered, s.first + (uint32_t)turn, s.one_device);
    }
}

__global__ void __launch_bounds__(TALK_THREADS)
    micro_signal_kernel(const __grid_constant__ micro_signal s, int speaker, int listener) {
    if ((int)blockIdx.x == speaker) speak(s);
    if ((int)blockIdx.x == listener) listen(s);
}

extern "C" {
cudaError_t micro_load(void) {
    cudaFuncAttributes a;
    const void *kernels[] = {(const void *)micro_fill_kernel, (const void *)micro_copy_kernel,
                             (const void *)micro_compare_kernel, (const void *)micro_signal_kernel};
    for (const void *k : kernels) {
        cudaError_t error = cudaFuncGetAttributes(&a, k);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t micro_fill(void *memory, int rows, int row_bytes, cudaStream_t stream) {
    micro_fill_kernel<<<1024, 256, 0, stream>>>((uint32_t *)memory, rows, row_bytes / 4);
    return cudaGetLastError();
}

cudaError_t micro_copy_rows(const micro_copy *c, int blocks, cudaStream_t stream) {
    micro_copy_kernel<<<blocks, COPY_THREADS, 0, stream>>>(*c);
    return cudaGetLastError();
}

cudaError_t micro_compare_rows(const micro_copy *c, uint32_t *wrong, cudaStream_t stream) {
    micro_compare_kernel<<<1024, 256, 0, stream>>>(*c, wrong);
    return cudaGetLastError();
}

cudaError_t micro_run_signal(const micro_signal *s, micro_end end, cudaStream_t stream) {
    int speaker = end == MICRO_LISTENER ? -1 : 0, listener = end == MICRO_SPEAKER ? -1 : end == MICRO_LISTENER ? 0 : 1;
    micro_signal_kernel<<<end == MICRO_BOTH_ENDS ? 2 : 1, TALK_THREADS, 0, stream>>>(*s, speaker, listener);
    return cudaGetLastError();
}
}
