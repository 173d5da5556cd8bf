/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small work that is over when it returns, on a stream of the thread's own: the legacy stream would wait for others, and
 * spoil what somebody captures.
 */
#ifndef FERRY_CUDA_NOW_H
#define FERRY_CUDA_NOW_H

#include <cuda_runtime.h>

static inline cudaError_t fy_copy_now(void *to, const void *from, size_t bytes) {
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread);
    return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : error;
}

static inline cudaError_t fy_copy_rows_now(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                           size_t rows) {
    cudaError_t error = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault,
                                          cudaStreamPerThread);
    return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : error;
}

static inline cudaError_t fy_clear_now(void *memory, size_t bytes) {
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread);
    return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : error;
}

#endif
