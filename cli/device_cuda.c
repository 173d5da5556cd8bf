/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a device, through the CUDA runtime. */
#include "cli/device.h"

#ifdef FERRY_HAVE_CUDA
#include <cuda_runtime.h>
#include <stdio.h>

/* The runtime's words for this one speak of a version even where there is no driver at all. */
static const char *say(cudaError_t error) {
    if (error == cudaErrorInsufficientDriver) return "no CUDA driver (libcuda.so.1), or too old a one";
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

static const char *find(cli_devices *devices) {
    struct cudaDeviceProp first;
    cudaError_t error = cudaGetDeviceCount(&devices->count);
    if (error == cudaSuccess && devices->count > 0) error = cudaGetDeviceProperties(&first, 0);
    if (error != cudaSuccess || devices->count == 0) return say(error);
    devices->processors = first.multiProcessorCount;
    snprintf(devices->name, sizeof devices->name, "%s", first.name);
    return NULL;
}

static const char *open_device(int index, void **stream) {
    const char *why = say(cudaSetDevice(index));
    return why ? why : say(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

static void close_device(void *stream) { cudaStreamDestroy(stream); }

static const char *alloc(void **memory, size_t bytes) { return say(cudaMalloc(memory, bytes ? bytes : 1)); }

static void free_memory(void *memory) { cudaFree(memory); }

static const char *copy(void *to, const void *from, size_t bytes, void *stream) {
    return say(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

static const char *fill(void *to, int byte, size_t bytes, void *stream) {
    return say(cudaMemsetAsync(to, byte, bytes, stream));
}

static const char *wait_for(void *stream) { return say(cudaStreamSynchronize(stream)); }

static const cli_device_ops ops = {.find = find,
                                   .open = open_device,
                                   .close = close_device,
                                   .alloc = alloc,
                                   .free = free_memory,
                                   .copy = copy,
                                   .fill = fill,
                                   .wait = wait_for};

const cli_device_ops *const cli_device_cuda = &ops;
#else
const cli_device_ops *const cli_device_cuda = NULL;
#endif
