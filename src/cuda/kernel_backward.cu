/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a backward, not traced. */
#include "cuda/kernel_backward.cuh"

#include "cuda/kernels_backward.h"

extern "C" {
cudaError_t fy_launch_keep(const fy_gpu_call *c, const fy_gpu_context *context, fy_gpu_backward_state *state,
                           int blocks, fy_launcher *to) {
    return c->trace.span ? fy_launch_traced_keep(c, context, state, blocks, to)
                         : fy_launch_keep_as<0>(c, context, state, blocks, to);
}

cudaError_t fy_launch_backward_schedule(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to) {
    return c->trace.span ? fy_launch_traced_backward_schedule(c, b, blocks, to)
                         : fy_launch_backward_schedule_as<0>(c, b, blocks, to);
}

cudaError_t fy_launch_backward(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to) {
    if (c->trace.span) return fy_launch_traced_backward(c, b, blocks, to);
    return b->ready ? fy_launch_backward_as<0, true>(c, b, blocks, to)
                    : fy_launch_backward_as<0, false>(c, b, blocks, to);
}

cudaError_t fy_load_backward(void) {
    cudaError_t error = fy_load_backward_schedule_as<0>();
    if (error == cudaSuccess) error = fy_load_backward_as<0, true>();
    return error != cudaSuccess ? error : fy_load_backward_as<0, false>();
}
}
