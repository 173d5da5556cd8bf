/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric device memory: a part on every rank's device, mapped into every rank's address space for its own device.
 * Made of the driver's virtual-memory handles: threads share a handle's number, processes its file descriptor. A
 * mapping holds its own reference, so a rank's part lives until the last rank has unmapped it.
 */
#ifndef FERRY_CUDA_MEMORY_H
#define FERRY_CUDA_MEMORY_H

#include "comm/comm.h"
#include "cuda/call.h"

typedef struct fy_gpu_memory {
    int ranks, rank;
    size_t bytes; /* of one part, rounded up to the driver's granularity */
    uint8_t *part[FY_GPU_MAX_RANKS];
} fy_gpu_memory;

/* Collective and agreed on by all ranks; zeroed. The current device is the rank's. Counted in comm->memory. */
ferry_status fy_gpu_memory_create(ferry_comm *comm, int device, size_t bytes, const char *what, fy_gpu_memory *memory);
/* Local; accepts one that was never made. */
void fy_gpu_memory_destroy(ferry_comm *comm, fy_gpu_memory *memory);

#endif
