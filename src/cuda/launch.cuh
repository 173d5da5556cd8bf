/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launch that may begin before the one before it in the stream has drained: it waits for that one's end and memory by
 * cudaGridDependencySynchronize, so only the time of launching overlaps.
 */
#ifndef FERRY_CUDA_LAUNCH_CUH
#define FERRY_CUDA_LAUNCH_CUH

#include "cuda/call.h"

#include <cuda_runtime.h>

static inline cudaError_t fy_launch_next(void (*kernel)(fy_gpu_call), int blocks, int threads, size_t shared,
                                         cudaStream_t stream, const fy_gpu_call *c) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, *c);
}

#endif
