/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute launch of the forward: one block on every multiprocessor that the layer uses. All work is taken by ticket
 * from ordered lists and depends on earlier tickets alone (here or on a peer), so any number of resident blocks, one
 * included, finishes; no block waits for another to be resident. Its schedule's launches (kernel_schedule.cuh) and it
 * exist twice: as they are, and with FY_TRACE.
 */
#ifndef FERRY_CUDA_KERNEL_FORWARD_CUH
#define FERRY_CUDA_KERNEL_FORWARD_CUH

#include "cuda/launch.cuh"
#include "cuda/role_choose.cuh"
#include "cuda/role_collect.cuh"
#include "cuda/role_load.cuh"
#include "cuda/role_product.cuh"
#include "cuda/role_pull.cuh"
#include "cuda/role_signal.cuh"
#include "cuda/role_sum.cuh"

/* KEEP: with a context, which gets x, g, u of its rows. TRACE, which is FY_TRACE, keeps the names apart. */
template <bool KEEP, int TRACE>
__global__ void __launch_bounds__(FY_THREADS, 1) fy_forward_kernel(const __grid_constant__ fy_gpu_call c) {
    extern __shared__ __align__(1024) uint8_t shared[];
    fy_block *block = fy_block_of(shared);
    if (threadIdx.x == 0) {
        fy_open_stages(block->full, block->empty);
        fy_open_choice(&block->chosen, &block->begun);
        fy_open_posts(block);
        block->pulled = 0;
        fy_barrier_init_fence();
    }
    fy_trace_open(c);
    __syncthreads();
    cudaGridDependencySynchronize();
    if (c.table.state->skip) return;
    /* One warpgroup that feeds, chooses, pulls, collects and sums, two that multiply: 128 and 256 threads share 384
     * times 168 registers. */
    int group = threadIdx.x / 128, warp = threadIdx.x / 32;
    bool apart = (int)blockIdx.x < c.comm_sms; /* a block that only pulls and sums */
    if (group == 0) {
        fy_registers_give<120>();
        if (warp == 0) {
            if (threadIdx.x == 0 && !apart) fy_load_role<KEEP>(c, shared);
            __syncwarp();
        } else if (warp == 1 && !apart) {
            fy_signals signals = {3, 0};
            fy_choose_role(c, shared, [&] { return fy_answer_posts(c, shared, signals); });
            fy_signal_role(c, shared, signals);
        } else {
            bool pulls = apart || (c.comm_sms == 0 && warp >= 2 && warp < 2 + c.comm_warps);
            fy_pull_head<KEEP>(c);
            if (warp == 3) fy_collect_role(c); /* which does not pull where only one does */
            if (pulls) fy_pull_role<KEEP>(c);
            fy_end_pulls(c, block, apart);
        }
        fy_sum_role(c);
    } else {
        fy_registers_take<192>();
        fy_pull_head<KEEP>(c);
        if (apart) fy_pull_role<KEEP>(c);
        fy_end_pulls(c, block, apart);
        if (!apart) fy_product_role<KEEP>(c, shared, group - 1);
        fy_sum_role(c);
    }
    __syncthreads();
    fy_trace_close(c);
}

template <int TRACE>
static cudaError_t fy_launch_forward_as(const fy_gpu_call *c, int blocks, fy_launcher *to) {
    return fy_launch(to, c->saved_x ? fy_forward_kernel<true, TRACE> : fy_forward_kernel<false, TRACE>, blocks,
                     FY_THREADS, TRACE ? (int)FY_TRACE_SHARED_BYTES : (int)FY_SHARED_BYTES, true, *c);
}

template <int TRACE>
static cudaError_t fy_load_forward_as(void) {
    int bytes = TRACE ? (int)FY_TRACE_SHARED_BYTES : (int)FY_SHARED_BYTES;
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t error = cudaFuncSetAttribute(fy_forward_kernel<false, TRACE>, most, bytes);
    return error != cudaSuccess ? error : cudaFuncSetAttribute(fy_forward_kernel<true, TRACE>, most, bytes);
}

#endif
