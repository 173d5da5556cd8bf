/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends. The CUDA one is there when the build found nvcc (FERRY_HAVE_CUDA). */
#include "core/layer.h"

#ifndef FERRY_HAVE_CUDA
const fy_backend *const fy_backend_cuda = NULL;
#endif

const fy_backend *fy_backend_of(ferry_backend backend) {
    switch (backend) {
    case FERRY_CPU:
        return &fy_backend_cpu;
    case FERRY_CUDA:
        return fy_backend_cuda;
    }
    return NULL;
}
