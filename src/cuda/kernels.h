/* SPDX-License-Identifier: Apache-2.0 */
/* The launches, as the host files see them. Each goes to `to` and returns the launch's own error. */
#ifndef FERRY_CUDA_KERNELS_H
#define FERRY_CUDA_KERNELS_H

#include "cuda/call.h"
#include "cuda/chain.h"

#include <cuda_runtime.h>

enum { FY_MAP_BATCH = 24 };

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t fy_load_schedule(void);
cudaError_t fy_load_forward(void);
/* Copies tensor maps to device memory, by value: the host array may go at once. */
cudaError_t fy_launch_maps(CUtensorMap *to, const CUtensorMap *maps, int count, cudaStream_t stream);
/* Times for rules/side.h, [FY_GPU_MAX_SMS][FY_SIDE_LINES] F32 at the begin of `memory`, which is zeroed. */
size_t fy_side_bytes(void);
cudaError_t fy_launch_sides(void *memory, int sms, cudaStream_t stream);
cudaError_t fy_launch_schedule(const fy_gpu_call *c, int sms, fy_launcher *to);
cudaError_t fy_launch_forward(const fy_gpu_call *c, int blocks, fy_launcher *to);
/* What those become where c->trace has memory (kernel_forward_trace.cu). */
cudaError_t fy_load_traced_forward(void);
cudaError_t fy_launch_traced_schedule(const fy_gpu_call *c, int sms, fy_launcher *to);
cudaError_t fy_launch_traced_forward(const fy_gpu_call *c, int blocks, fy_launcher *to);
#ifdef __cplusplus
}
#endif
#endif
