/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one layer on one device, apart from communicators: device memory, kernels and the launches of a call.
 * Symmetric memory is the caller's, given as one pointer per rank.
 */
#ifndef FERRY_CUDA_ENGINE_H
#define FERRY_CUDA_ENGINE_H

#include "cuda/chain.h"
#include "cuda/plan.h"

typedef struct fy_gpu_engine {
    fy_shape shape;
    fy_gpu_knobs knobs;
    int device;
    fy_gpu_call call;  /* what does not change between calls is filled in */
    fy_gpu_page *page; /* host side of call.page */
    uint8_t *tables, *ring;
    int64_t table_bytes, ring_bytes;
    fy_chain forward; /* without a context */
} fy_gpu_engine;

/* `peer[r]`: symmetric memory of rank r, zeroed, as `device` sees it. The current device is the engine's. */
ferry_status fy_gpu_engine_create(fy_gpu_engine *engine, const fy_shape *shape, const fy_gpu_knobs *knobs, int device,
                                  const int32_t *expert_rank, uint8_t *const *peer, double enter_timeout_s,
                                  double progress_timeout_s);
void fy_gpu_engine_destroy(fy_gpu_engine *engine);
/* What the kernels of one call are told; enqueues the copies that it speaks of. */
ferry_status fy_gpu_engine_describe(fy_gpu_engine *engine, const ferry_forward_args *args, fy_gpu_call *call);
/* Enqueues; `args` has been checked. */
ferry_status fy_gpu_engine_forward(fy_gpu_engine *engine, const ferry_forward_args *args);
/* A fault that the device recorded, without the communicator's words for it (watch.c); FERRY_OK when there is none. */
ferry_status fy_gpu_engine_fault(const fy_gpu_engine *engine);

#endif
