/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch of a call: made, recorded, or, where the call's graph is there, given to its node (chain.h). A launch that
 * says `early` may begin before the one before it in the stream has drained, as soon as all blocks of that one have
 * said so (cudaTriggerProgrammaticLaunchCompletion) or ended: it waits for that one's end and memory by
 * cudaGridDependencySynchronize, so what overlaps is the launching and what touches nothing of that one.
 */
#ifndef FERRY_CUDA_LAUNCH_CUH
#define FERRY_CUDA_LAUNCH_CUH

#include "cuda/call.h"
#include "cuda/chain.h"

#include <cuda_runtime.h>

/* Gives the next node its arguments. Kernel, grid and shared memory of a node follow from them and from what is fixed
 * in a layer, so the same arguments need nothing new. */
template <class... Arguments>
static inline cudaError_t fy_tell(fy_launcher *to, void (*kernel)(Arguments...), int blocks, int threads, size_t shared,
                                  const Arguments &...arguments) {
    void *values[] = {(void *)&arguments...};
    const size_t sizes[] = {sizeof(Arguments)...};
    if (to->next == to->chain->count) return cudaErrorInvalidValue;
    int index = to->next++;
    if (fy_told_again(&to->chain->told[index], values, sizes, sizeof...(Arguments))) return cudaSuccess;
    cudaKernelNodeParams node = {};
    node.func = (void *)kernel;
    node.gridDim = dim3(blocks);
    node.blockDim = dim3(threads);
    node.sharedMemBytes = (unsigned)shared;
    node.kernelParams = values;
    cudaError_t error = cudaGraphExecKernelNodeSetParams(to->chain->exec, to->chain->node[index], &node);
    if (error != cudaSuccess) fy_told_forget(&to->chain->told[index]);
    return error;
}

template <class... Arguments>
static inline cudaError_t fy_launch(fy_launcher *to, void (*kernel)(Arguments...), int blocks, int threads,
                                    size_t shared, bool early, const Arguments &...arguments) {
    if (to->chain && !to->recording) return fy_tell(to, kernel, blocks, threads, shared, arguments...);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = to->stream;
    config.attrs = &attribute;
    config.numAttrs = early;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
    return error == cudaSuccess && to->recording ? fy_chain_keep(to) : error;
}

#endif
