/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA call that fails becomes a named error with CUDA's own words. */
#ifndef FERRY_CUDA_ERROR_H
#define FERRY_CUDA_ERROR_H

#include "core/status.h"

#include <cuda_runtime.h>

#define FY_CUDA(call, doing)                                                                                           \
    do {                                                                                                               \
        cudaError_t fy_cuda_error = (call);                                                                            \
        if (fy_cuda_error != cudaSuccess)                                                                              \
            return fy_fail(FERRY_E_CUDA, "%s: %s (%s)", doing, cudaGetErrorString(fy_cuda_error),                      \
                           cudaGetErrorName(fy_cuda_error));                                                           \
    } while (0)

#endif
