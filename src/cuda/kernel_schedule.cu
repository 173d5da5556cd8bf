/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a forward's schedule, not traced, and the copies of tensor maps. */
#include "cuda/kernel_schedule.cuh"

#include "cuda/kernels.h"

/* Tensor maps of weights given as tables: the host made them, they must lie in device memory. */
struct fy_map_batch {
    CUtensorMap map[FY_MAP_BATCH];
};

__global__ void __launch_bounds__(128)
    fy_maps_kernel(CUtensorMap *to, const __grid_constant__ fy_map_batch batch, int count) {
    int words = count * (int)(sizeof(CUtensorMap) / 8);
    for (int i = threadIdx.x; i < words; i += blockDim.x) ((uint64_t *)to)[i] = ((const uint64_t *)batch.map)[i];
}

extern "C" {
cudaError_t fy_launch_maps(CUtensorMap *to, const CUtensorMap *maps, int count, cudaStream_t stream) {
    for (int done = 0; done < count; done += FY_MAP_BATCH) {
        fy_map_batch batch;
        int n = count - done < FY_MAP_BATCH ? count - done : FY_MAP_BATCH;
        memcpy(batch.map, maps + done, (size_t)n * sizeof *maps);
        fy_maps_kernel<<<1, 128, 0, stream>>>(to + done, batch, n);
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t fy_launch_schedule(const fy_gpu_call *c, int sms, fy_launcher *to) {
    return c->trace.span ? fy_launch_traced_schedule(c, sms, to) : fy_launch_schedule_as<0>(c, sms, to);
}

cudaError_t fy_load_schedule(void) {
    cudaFuncAttributes a;
    cudaError_t error = fy_load_schedule_as<0>();
    return error != cudaSuccess ? error : cudaFuncGetAttributes(&a, fy_maps_kernel);
}
}
