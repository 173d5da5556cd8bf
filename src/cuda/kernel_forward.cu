/* SPDX-License-Identifier: Apache-2.0 */
/* The compute launch of the forward, not traced. */
#include "cuda/kernel_forward.cuh"

#include "cuda/kernels.h"

extern "C" {
cudaError_t fy_launch_forward(const fy_gpu_call *c, int blocks, fy_launcher *to) {
    return c->trace.span ? fy_launch_traced_forward(c, blocks, to) : fy_launch_forward_as<0>(c, blocks, to);
}

cudaError_t fy_load_forward(void) { return fy_load_forward_as<0>(); }
}
