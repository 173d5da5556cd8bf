/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work on the communicator's device that gives the caller's back. Meanwhile what this thread calls is nobody's business
 * who captures in another thread.
 */
#ifndef FERRY_CUDA_SCOPE_H
#define FERRY_CUDA_SCOPE_H

#include "cuda/error.h"

typedef struct fy_on_device {
    int before, changed, entered;
    enum cudaStreamCaptureMode mode; /* of the caller's thread */
} fy_on_device;

static inline void fy_leave_device(fy_on_device *scope) {
    if (scope->entered) cudaThreadExchangeStreamCaptureMode(&scope->mode);
    if (scope->changed) cudaSetDevice(scope->before);
    scope->changed = scope->entered = 0;
}

/* A failure leaves nothing to give back. The mode is exchanged on the communicator's device, since that makes a context
 * on the current one, which need not be one that the process may use. */
static inline ferry_status fy_enter_device(int device, fy_on_device *scope) {
    *scope = (fy_on_device){.mode = cudaStreamCaptureModeRelaxed};
    cudaError_t error = cudaGetDevice(&scope->before);
    if (error == cudaSuccess && scope->before != device) {
        error = cudaSetDevice(device);
        scope->changed = error == cudaSuccess;
    }
    if (error == cudaSuccess) error = cudaThreadExchangeStreamCaptureMode(&scope->mode);
    scope->entered = error == cudaSuccess;
    if (error != cudaSuccess) fy_leave_device(scope);
    FY_CUDA(error, "choosing the communicator's device");
    return FERRY_OK;
}

#endif
