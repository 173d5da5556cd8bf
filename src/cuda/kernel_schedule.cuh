/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a forward's schedule; as they are, and with FY_TRACE. */
#ifndef FERRY_CUDA_KERNEL_SCHEDULE_CUH
#define FERRY_CUDA_KERNEL_SCHEDULE_CUH

#include "cuda/launch.cuh"
#include "cuda/role_place.cuh"
#include "cuda/role_wait.cuh"

template <int TRACE>
__global__ void __launch_bounds__(FY_CHUNK) fy_count_kernel(const __grid_constant__ fy_gpu_call c) {
    extern __shared__ int32_t histogram[];
    cudaTriggerProgrammaticLaunchCompletion();
    fy_trace_launch_begin(c, FY_LAUNCH_COUNT);
    fy_count_role(c, histogram);
    fy_trace_launch_end(c, FY_LAUNCH_COUNT);
}

template <int TRACE>
__global__ void __launch_bounds__(FY_CHUNK, 3) fy_rank_kernel(const __grid_constant__ fy_gpu_call c, int blocks) {
    extern __shared__ __align__(16) uint8_t rank_memory[];
    fy_trace_launch_begin(c, FY_LAUNCH_RANK);
    fy_rank_role(c, blocks, rank_memory);
    fy_trace_launch_end(c, FY_LAUNCH_RANK);
}

template <int TRACE>
__global__ void __launch_bounds__(1024) fy_wait_kernel(const __grid_constant__ fy_gpu_call c) {
    cudaGridDependencySynchronize();
    fy_publish_role(c);
    fy_trace_launch_end(c, FY_LAUNCH_RANK);
    fy_wait_role(c);
}

template <int TRACE>
__global__ void __launch_bounds__(FY_PLACE_THREADS) fy_place_kernel(const __grid_constant__ fy_gpu_call c) {
    fy_await_launch();
    if (c.table.state->skip) return;
    fy_trace_launch_begin(c, FY_LAUNCH_PLACE);
    fy_place_block(c);
    fy_trace_launch_end(c, FY_LAUNCH_PLACE);
}

template <int TRACE>
static cudaError_t fy_launch_schedule_as(const fy_gpu_call *c, int sms, fy_launcher *to) {
    int chunks = (int)fy_divide_up((int64_t)c->max_tokens * c->slots, FY_CHUNK);
    if (chunks < 1) chunks = 1;
    size_t experts = (size_t)c->experts * sizeof(int32_t);
    cudaError_t error = fy_launch(to, fy_count_kernel<TRACE>, 2 * sms, FY_CHUNK, experts, false, *c);
    if (error == cudaSuccess)
        error = fy_launch(to, fy_rank_kernel<TRACE>, chunks + (c->staged ? 2 * sms : 0), FY_CHUNK,
                          fy_rank_bytes(c->experts), true, *c, chunks);
    if (error == cudaSuccess) error = fy_launch(to, fy_wait_kernel<TRACE>, 1, 1024, 0, true, *c);
    int others = fy_lay_blocks(c->local_experts) + 2;
    if (error == cudaSuccess)
        error = fy_launch(to, fy_place_kernel<TRACE>, sms + others, FY_PLACE_THREADS, 0, true, *c);
    return error;
}

/* Lazily loaded kernels are loaded when first asked about: loading in a call could wait for one that runs. */
template <int TRACE>
static cudaError_t fy_load_schedule_as(void) {
    cudaFuncAttributes a;
    const void *kernels[] = {(const void *)fy_count_kernel<TRACE>, (const void *)fy_rank_kernel<TRACE>,
                             (const void *)fy_wait_kernel<TRACE>, (const void *)fy_place_kernel<TRACE>};
    for (const void *k : kernels) {
        cudaError_t error = cudaFuncGetAttributes(&a, k);
        if (error != cudaSuccess) return error;
    }
    return cudaFuncSetAttribute(fy_rank_kernel<TRACE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)fy_rank_bytes(FY_GPU_MAX_EXPERTS));
}

#endif
