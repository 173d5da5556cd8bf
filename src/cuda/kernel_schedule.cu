/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule launches. */
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/role_schedule.cuh"

__global__ void __launch_bounds__(FY_CHUNK) fy_count_kernel(const __grid_constant__ fy_gpu_call c) {
    extern __shared__ int32_t histogram[];
    fy_count_role(c, histogram);
}

__global__ void __launch_bounds__(FY_CHUNK) fy_rank_kernel(const __grid_constant__ fy_gpu_call c) {
    extern __shared__ __align__(16) int32_t memory[];
    cudaGridDependencySynchronize();
    fy_rank_role(c, memory + FY_CHUNK, memory);
}

__global__ void __launch_bounds__(1024) fy_wait_kernel(const __grid_constant__ fy_gpu_call c) {
    cudaGridDependencySynchronize();
    fy_wait_role(c);
}

__global__ void __launch_bounds__(256) fy_place_kernel(const __grid_constant__ fy_gpu_call c) {
    cudaGridDependencySynchronize();
    fy_place_role(c);
}

/* Tensor maps of weights given as tables: the host made them, they must lie in device memory. */
struct fy_map_batch {
    CUtensorMap map[FY_MAP_BATCH];
};

__global__ void __launch_bounds__(128)
    fy_maps_kernel(CUtensorMap *to, const __grid_constant__ fy_map_batch batch, int count) {
    int words = count * (int)(sizeof(CUtensorMap) / 8);
    for (int i = threadIdx.x; i < words; i += blockDim.x) ((uint64_t *)to)[i] = ((const uint64_t *)batch.map)[i];
}

extern "C" {
cudaError_t fy_launch_maps(CUtensorMap *to, const CUtensorMap *maps, int count, cudaStream_t stream) {
    for (int done = 0; done < count; done += FY_MAP_BATCH) {
        fy_map_batch batch;
        int n = count - done < FY_MAP_BATCH ? count - done : FY_MAP_BATCH;
        memcpy(batch.map, maps + done, (size_t)n * sizeof *maps);
        fy_maps_kernel<<<1, 128, 0, stream>>>(to + done, batch, n);
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t fy_launch_schedule(const fy_gpu_call *c, int sms, cudaStream_t stream) {
    int chunks = (int)fy_divide_up((int64_t)c->max_tokens * c->slots, FY_CHUNK);
    if (chunks < 1) chunks = 1;
    size_t experts = (size_t)c->experts * sizeof(int32_t);
    fy_count_kernel<<<2 * sms, FY_CHUNK, experts, stream>>>(*c);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        error = fy_launch_next(fy_rank_kernel, chunks, FY_CHUNK, experts + FY_CHUNK * sizeof(int32_t), stream, c);
    if (error == cudaSuccess) error = fy_launch_next(fy_wait_kernel, 1, 1024, 0, stream, c);
    if (error == cudaSuccess) error = fy_launch_next(fy_place_kernel, sms, 256, 0, stream, c);
    return error;
}

/* Lazily loaded kernels are loaded when first asked about: loading in a call could wait for one that runs. */
cudaError_t fy_load_schedule(void) {
    cudaFuncAttributes a;
    const void *kernels[] = {(const void *)fy_count_kernel, (const void *)fy_rank_kernel, (const void *)fy_wait_kernel,
                             (const void *)fy_place_kernel, (const void *)fy_maps_kernel};
    for (const void *k : kernels) {
        cudaError_t error = cudaFuncGetAttributes(&a, k);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}
