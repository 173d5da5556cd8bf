/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric memory for callers of a CUDA communicator. */
#ifndef FERRY_CUDA_SYMMETRIC_H
#define FERRY_CUDA_SYMMETRIC_H

#include "cuda/backend.h"

ferry_status fy_gpu_sym_alloc(ferry_comm *comm, size_t bytes, void **memory);
void fy_gpu_sym_free(ferry_comm *comm, void *memory);
ferry_status fy_gpu_sym_peer(ferry_comm *comm, const void *memory, int rank, void **peer);
/* All blocks that are left, when the communicator goes. */
void fy_gpu_sym_end(ferry_comm *comm);

#endif
