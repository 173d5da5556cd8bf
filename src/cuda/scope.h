/* SPDX-License-Identifier: Apache-2.0 */
/* Work on the communicator's device that gives the caller's back. */
#ifndef FERRY_CUDA_SCOPE_H
#define FERRY_CUDA_SCOPE_H

#include "cuda/error.h"

typedef struct fy_on_device {
    int before, changed;
} fy_on_device;

static inline ferry_status fy_enter_device(int device, fy_on_device *scope) {
    scope->changed = 0;
    FY_CUDA(cudaGetDevice(&scope->before), "asking for the current device");
    if (scope->before == device) return FERRY_OK;
    FY_CUDA(cudaSetDevice(device), "choosing the communicator's device");
    scope->changed = 1;
    return FERRY_OK;
}

static inline void fy_leave_device(const fy_on_device *scope) {
    if (scope->changed) cudaSetDevice(scope->before);
}

#endif
