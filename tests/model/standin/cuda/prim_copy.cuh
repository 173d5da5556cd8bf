/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_copy.cuh: copies are handed to the block's copy engine (engine.cc), which is a worker of its
 * own and carries them out later, in any order. */
#ifndef FERRY_CUDA_PRIM_COPY_CUH
#define FERRY_CUDA_PRIM_COPY_CUH

#include "cuda/prim_barrier.cuh"
#include "engine.h"

FY_DEVICE void fy_load_box2(void *to, const CUtensorMap *map, uint64_t *full, int column, int row) {
    step();
    engine_order({map, (uint8_t *)to, full, column, row});
}
FY_DEVICE void fy_load_box3(void *to, const CUtensorMap *map, uint64_t *full, int column, int row, int) {
    engine_order({map, (uint8_t *)to, full, column, row});
}

#endif
