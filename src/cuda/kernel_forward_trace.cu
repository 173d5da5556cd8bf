/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a forward whose roles note their times. */
#define FY_TRACE 1
#include "cuda/kernel_forward.cuh"
#include "cuda/kernel_schedule.cuh"

#include "cuda/kernels.h"

extern "C" {
cudaError_t fy_launch_traced_schedule(const fy_gpu_call *c, int sms, fy_launcher *to) {
    return fy_launch_schedule_as<1>(c, sms, to);
}

cudaError_t fy_launch_traced_forward(const fy_gpu_call *c, int blocks, fy_launcher *to) {
    return fy_launch_forward_as<1>(c, blocks, to);
}

cudaError_t fy_load_traced_forward(void) {
    cudaError_t error = fy_load_schedule_as<1>();
    return error != cudaSuccess ? error : fy_load_forward_as<1>();
}
}
