/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of one layer on one device, beside its forward's engine: memory, tensor maps and the launches of a call. */
#ifndef FERRY_CUDA_LAUNCH_BACKWARD_H
#define FERRY_CUDA_LAUNCH_BACKWARD_H

#include "cuda/backward.h"
#include "cuda/engine.h"

typedef struct fy_gpu_gradient {
    const fy_gpu_engine *engine;
    fy_gpu_backward call; /* what does not change between calls is filled in */
    uint8_t *memory;
    int64_t bytes;
} fy_gpu_gradient;

/* Parts of symmetric memory behind its first `bytes`; returns the new number of bytes. Pure. */
uint64_t fy_gpu_lay_backward_symmetric(const fy_shape *shape, uint64_t bytes, fy_gpu_backward_symmetric *at);
/* Sets the pointers of `tables` as if the memory began at `base`; returns the bytes. Pure. */
int64_t fy_gpu_lay_backward(const fy_shape *shape, uint8_t *base, fy_gpu_backward_tables *tables);

/* The engine and its symmetric memory, laid out by fy_gpu_lay_backward_symmetric behind `at`, outlive it. */
ferry_status fy_gpu_gradient_create(fy_gpu_gradient *gradient, const fy_gpu_engine *engine, uint64_t symmetric_bytes);
void fy_gpu_gradient_destroy(fy_gpu_gradient *gradient);
/* The call's tables of rows become those of the context. */
void fy_gpu_use_context(fy_gpu_call *call, const fy_gpu_context *context);
/* What the kernels of one call are told: the first half of the next function, for measurements of parts of a call. */
ferry_status fy_gpu_gradient_describe(fy_gpu_gradient *gradient, uint8_t *context, const ferry_backward_args *args,
                                      fy_gpu_call *call, fy_gpu_backward *backward);
/* Enqueues; `args` has been checked. `context`: memory that a forward of the engine has filled. */
ferry_status fy_gpu_gradient_backward(fy_gpu_gradient *gradient, uint8_t *context, const ferry_backward_args *args);

#endif
