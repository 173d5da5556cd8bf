/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward of one layer on one device, beside its forward's engine: memory, tensor maps and the launches of a
 * call.
 */
#ifndef FERRY_CUDA_LAUNCH_BACKWARD_H
#define FERRY_CUDA_LAUNCH_BACKWARD_H

#include "cuda/backward.h"
#include "cuda/engine.h"

typedef struct fy_gpu_gradient {
    fy_gpu_engine *engine;
    fy_gpu_backward call; /* what does not change between calls is filled in */
    uint8_t *memory;
    int64_t bytes;
    fy_chain forward, backward[2]; /* forward with a context; backward without and with words for gradients */
} fy_gpu_gradient;

/* The backward's parts of symmetric memory, behind the forward's; returns the bytes of all. Pure. */
uint64_t fy_gpu_lay_backward_symmetric(const fy_shape *shape, fy_gpu_backward_symmetric *at);
/* The same bytes in whole pages of symmetric memory. */
uint64_t fy_gpu_symmetric_bytes(const fy_shape *shape);
/* Sets the pointers of `tables` as if the memory began at `base`; returns the bytes. Pure. */
int64_t fy_gpu_lay_backward(const fy_shape *shape, uint8_t *base, fy_gpu_backward_tables *tables);

/* The engine, whose symmetric memory has fy_gpu_symmetric_bytes, outlives it. */
ferry_status fy_gpu_gradient_create(fy_gpu_gradient *gradient, fy_gpu_engine *engine);
void fy_gpu_gradient_destroy(fy_gpu_gradient *gradient);
/* A forward that fills a context. */
ferry_status fy_gpu_gradient_forward(fy_gpu_gradient *gradient, uint8_t *context, const ferry_forward_args *args);
/* What the kernels of one call are told: the first half of the next function, for measurements of parts of a call. */
ferry_status fy_gpu_gradient_describe(fy_gpu_gradient *gradient, uint8_t *context, const ferry_backward_args *args,
                                      fy_gpu_call *call, fy_gpu_backward *backward);
/* Enqueues; `args` has been checked. `context`: memory that a forward of the engine has filled. */
ferry_status fy_gpu_gradient_backward(fy_gpu_gradient *gradient, uint8_t *context, const ferry_backward_args *args);

#endif
