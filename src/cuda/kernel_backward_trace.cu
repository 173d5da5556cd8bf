/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a backward whose roles note their times. */
#define FY_TRACE 1
#include "cuda/kernel_backward.cuh"

#include "cuda/kernels_backward.h"

extern "C" {
cudaError_t fy_launch_traced_keep(const fy_gpu_call *c, const fy_gpu_context *context, fy_gpu_backward_state *state,
                                  int blocks, fy_launcher *to) {
    return fy_launch_keep_as<1>(c, context, state, blocks, to);
}

cudaError_t fy_launch_traced_backward_schedule(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks,
                                               fy_launcher *to) {
    return fy_launch_backward_schedule_as<1>(c, b, blocks, to);
}

cudaError_t fy_launch_traced_backward(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to) {
    return fy_launch_backward_as<1, true>(c, b, blocks, to);
}

cudaError_t fy_load_traced_backward(void) {
    cudaError_t error = fy_load_backward_schedule_as<1>();
    return error != cudaSuccess ? error : fy_load_backward_as<1, true>();
}
}
