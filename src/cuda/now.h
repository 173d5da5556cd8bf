/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small work that is over when it returns, on a stream that waits for no other: the legacy stream would, and spoil what
 * somebody captures.
 */
#ifndef FERRY_CUDA_NOW_H
#define FERRY_CUDA_NOW_H

#include <cuda_runtime.h>

static inline cudaError_t fy_now_begin(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
}

/* `error`: of what was put on the stream. */
static inline cudaError_t fy_now_end(cudaStream_t stream, cudaError_t error) {
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error;
}

static inline cudaError_t fy_copy_now(void *to, const void *from, size_t bytes) {
    cudaStream_t stream;
    cudaError_t error = fy_now_begin(&stream);
    if (error != cudaSuccess) return error;
    return fy_now_end(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

static inline cudaError_t fy_copy_rows_now(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                           size_t rows) {
    cudaStream_t stream;
    cudaError_t error = fy_now_begin(&stream);
    if (error != cudaSuccess) return error;
    return fy_now_end(stream,
                      cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, stream));
}

static inline cudaError_t fy_clear_now(void *memory, size_t bytes) {
    cudaStream_t stream;
    cudaError_t error = fy_now_begin(&stream);
    if (error != cudaSuccess) return error;
    return fy_now_end(stream, cudaMemsetAsync(memory, 0, bytes, stream));
}

#endif
