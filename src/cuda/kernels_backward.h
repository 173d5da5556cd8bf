/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launches of a backward, as the host files see them. Each goes to `to` and returns the launch's own error.
 */
#ifndef FERRY_CUDA_KERNELS_BACKWARD_H
#define FERRY_CUDA_KERNELS_BACKWARD_H

#include "cuda/backward.h"
#include "cuda/chain.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t fy_load_backward(void);
/* Between the schedule and the compute launch of a forward that has a context. */
cudaError_t fy_launch_keep(const fy_gpu_call *c, const fy_gpu_context *context, fy_gpu_backward_state *state,
                           int blocks, fy_launcher *to);
cudaError_t fy_launch_backward_schedule(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to);
cudaError_t fy_launch_backward(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to);
/* What those become where c->trace has memory (kernel_backward_trace.cu). */
cudaError_t fy_load_traced_backward(void);
cudaError_t fy_launch_traced_keep(const fy_gpu_call *c, const fy_gpu_context *context, fy_gpu_backward_state *state,
                                  int blocks, fy_launcher *to);
cudaError_t fy_launch_traced_backward_schedule(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks,
                                               fy_launcher *to);
cudaError_t fy_launch_traced_backward(const fy_gpu_call *c, const fy_gpu_backward *b, int blocks, fy_launcher *to);
#ifdef __cplusplus
}
#endif
#endif
