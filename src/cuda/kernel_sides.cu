/* SPDX-License-Identifier: Apache-2.0 */
/* How long every multiprocessor takes for an atomic addition to each of a few lines (sides.c). */
#include "cuda/kernels.h"
#include "cuda/prim_memory.cuh"
#include "rules/side.h"

enum { STRIDE = 3 * 4096 + 128, TRIES = 24, ALONE = 200 << 10 /* bytes of shared memory: one block each */ };

/* Memory: times [FY_GPU_MAX_SMS][FY_SIDE_LINES], then the lines. */
__global__ void __launch_bounds__(32) fy_sides_kernel(float *time, uint8_t *lines) {
    int sm = (int)fy_multiprocessor();
    if (threadIdx.x > 0 || sm >= FY_GPU_MAX_SMS) return;
    for (int j = 0; j < FY_SIDE_LINES; j++) {
        int line = (j + sm) % FY_SIDE_LINES; /* not all at the same one */
        uint32_t *word = (uint32_t *)(lines + line * STRIDE);
        long long least = 1 << 30;
        for (int i = 0; i < TRIES; i++) {
            long long begin = clock64();
            if (atomicAdd(word, 0u) != 0) return; /* the words are 0: the clock is read when that is known */
            long long time = clock64() - begin;
            least = time < least ? time : least;
        }
        time[sm * FY_SIDE_LINES + line] = (float)least;
    }
}

extern "C" {
size_t fy_side_bytes(void) { return FY_GPU_MAX_SMS * FY_SIDE_LINES * sizeof(float) + FY_SIDE_LINES * STRIDE; }

cudaError_t fy_launch_sides(void *memory, int sms, cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(fy_sides_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ALONE);
    if (error != cudaSuccess) return error;
    uint8_t *lines = (uint8_t *)memory + FY_GPU_MAX_SMS * FY_SIDE_LINES * sizeof(float);
    fy_sides_kernel<<<sms, 32, ALONE, stream>>>((float *)memory, lines);
    return cudaGetLastError();
}
}
