/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launches of a backward: the small ones of its schedule, and the compute launch, which works as the forward's does
 * (kernel_forward.cuh): one block on every multiprocessor, all work by ticket, each ticket depending on earlier ones
 * alone. As they are, and with FY_TRACE.
 */
#ifndef FERRY_CUDA_KERNEL_BACKWARD_CUH
#define FERRY_CUDA_KERNEL_BACKWARD_CUH

#include "cuda/launch.cuh"
#include "cuda/role_choose_backward.cuh"
#include "cuda/role_load_backward.cuh"
#include "cuda/role_product_backward.cuh"
#include "cuda/role_pull_backward.cuh"
#include "cuda/role_schedule_backward.cuh"
#include "cuda/role_sum_backward.cuh"

template <int TRACE>
__global__ void __launch_bounds__(512)
    fy_keep_kernel(const __grid_constant__ fy_gpu_call c, const __grid_constant__ fy_gpu_context context,
                   fy_gpu_backward_state *state) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    fy_trace_launch_begin(c, FY_LAUNCH_KEEP);
    fy_keep_role(c, context, state);
    fy_trace_launch_end(c, FY_LAUNCH_KEEP);
}

template <int TRACE>
__global__ void __launch_bounds__(512)
    fy_stage_kernel(const __grid_constant__ fy_gpu_call c, const __grid_constant__ fy_gpu_backward b) {
    cudaTriggerProgrammaticLaunchCompletion();
    fy_trace_launch_begin(c, FY_LAUNCH_STAGE);
    fy_stage_role(c, b);
    fy_trace_launch_end(c, FY_LAUNCH_STAGE);
}

template <int TRACE>
__global__ void __launch_bounds__(1024, 1)
    fy_enter_kernel(const __grid_constant__ fy_gpu_call c, const __grid_constant__ fy_gpu_backward b) {
    fy_enter_role(c, b);
}

/*
 * The end of a block. A call with dx rows ends after all peers have pulled from here, since it has waited for what they
 * made of it; one without has to wait for their word before this rank's next call may overwrite what is staged.
 */
static __device__ __forceinline__ void fy_end_backward(const fy_gpu_call &c, const fy_gpu_backward &b) {
    fy_gpu_backward_state *state = b.table.state;
    if (fy_fetch_add_acq_rel_gpu(&state->finished, 1) != gridDim.x - 1) return;
    volatile fy_gpu_page *page = c.page;
    page->remote_pulls = __ldcg(&state->remote_pulls);
    page->pulls = __ldcg(&state->pulls) + page->remote_pulls;
    if (c.ranks == 1 || (b.parts & FERRY_BACKWARD_DATA)) return;
    uint32_t call = c.table.state->calls;
    fy_fence_sys();
    for (int r = 0; r < c.ranks; r++) fy_store_release_sys((uint32_t *)(c.peer[r] + b.at.finished) + c.rank, call);
    for (int r = 0; r < c.ranks; r++)
        if (!fy_await<true>(c, (const uint32_t *)(c.peer[c.rank] + b.at.finished) + r, call, FY_AT_ENDED, r,
                            c.progress_timeout_ns))
            return;
}

static_assert((int)FY_BACKWARD_SHARED_BYTES <= (int)FY_TRACE_AT, "a trace's workers lie behind it");

/* READY: the caller wants to know when the gradients of an expert are there. */
template <int TRACE, bool READY>
__global__ void __launch_bounds__(FY_THREADS, 1)
    fy_backward_kernel(const __grid_constant__ fy_gpu_call c, const __grid_constant__ fy_gpu_backward b) {
    extern __shared__ __align__(1024) uint8_t shared[];
    fy_backward_block *block = fy_backward_block_of(shared);
    if (threadIdx.x == 0) {
        fy_open_stages(block->full, block->empty);
        for (int i = 0; i < 2; i++) fy_barrier_init(&block->old[i], 1);
        fy_open_choice(&block->chosen, &block->begun);
        fy_barrier_init_fence();
    }
    fy_trace_open(c);
    __syncthreads();
    cudaGridDependencySynchronize();
    if (c.table.state->skip) return;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32;
    bool apart = (int)blockIdx.x < c.comm_sms; /* a block that only pulls and sums */
    if (group == 0) {
        fy_registers_give<72>();
        if (warp == 0) {
            if (threadIdx.x == 0 && !apart) fy_load_backward_role(c, b, shared);
            __syncwarp();
        } else if (warp == 1) {
            if (threadIdx.x == 32 && !apart) fy_choose_backward_role(c, b, shared);
            __syncwarp();
        }
        if (warp >= 2) fy_pull_backward_head(c, b);
        if (apart || (c.comm_sms == 0 && warp >= 2 && warp < 2 + c.comm_warps)) fy_pull_backward_role(c, b);
        fy_sum_backward_role(c, b);
    } else {
        fy_registers_take<216>();
        /* The shared expert's products need no pull. */
        if (c.shared == 0) fy_pull_backward_head(c, b);
        if (!apart)
            fy_product_backward_role<READY>(c, b, shared, group - 1);
        else
            fy_pull_backward_role(c, b);
        fy_sum_backward_role(c, b);
    }
    __syncthreads();
    fy_trace_close(c);
    if (threadIdx.x == 0) fy_end_backward(c, b);
}

template <int TRACE>
static cudaError_t fy_launch_keep_as(const fy_gpu_call *c, const fy_gpu_context *context, fy_gpu_backward_state *state,
                                     int blocks, fy_launcher *to) {
    return fy_launch(to, fy_keep_kernel<TRACE>, 2 * blocks, 512, 0, true, *c, *context, state);
}

template <int TRACE>
static cudaError_t fy_launch_backward_schedule_as(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks,
                                                  fy_launcher *to) {
    cudaError_t error = fy_launch(to, fy_stage_kernel<TRACE>, 2 * blocks, 512, 0, false, *c, *b);
    return error != cudaSuccess ? error : fy_launch(to, fy_enter_kernel<TRACE>, 1, 1024, 0, true, *c, *b);
}

template <int TRACE, bool READY>
static cudaError_t fy_launch_backward_as(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to) {
    int bytes = TRACE ? (int)FY_TRACE_SHARED_BYTES : (int)FY_BACKWARD_SHARED_BYTES;
    return fy_launch(to, fy_backward_kernel<TRACE, READY>, blocks, FY_THREADS, bytes, true, *c, *b);
}

/* Lazily loaded kernels are loaded when first asked about: loading in a call could wait for one that runs. */
template <int TRACE>
static cudaError_t fy_load_backward_schedule_as(void) {
    cudaFuncAttributes a;
    const void *kernels[] = {(const void *)fy_keep_kernel<TRACE>, (const void *)fy_stage_kernel<TRACE>,
                             (const void *)fy_enter_kernel<TRACE>};
    for (const void *k : kernels) {
        cudaError_t error = cudaFuncGetAttributes(&a, k);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

template <int TRACE, bool READY>
static cudaError_t fy_load_backward_as(void) {
    return cudaFuncSetAttribute(fy_backward_kernel<TRACE, READY>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                TRACE ? (int)FY_TRACE_SHARED_BYTES : (int)FY_BACKWARD_SHARED_BYTES);
}

#endif
