/* SPDX-License-Identifier: Apache-2.0 */
/* What the kind of a forward's product tile says about it. */
#ifndef FERRY_CUDA_KIND_CUH
#define FERRY_CUDA_KIND_CUH

#include "cuda/call.h"
#include "cuda/prim_memory.cuh"

/* fy_divide_up in 32 bits: wide arithmetic costs the producer warps registers that they do not have. */
FY_DEVICE int fy_parts(int value, uint32_t by) { return (int)(((uint32_t)value + by - 1) / by); }

FY_DEVICE bool fy_is_make(int kind) { return kind == FY_MAKE || kind == FY_SHARED_MAKE; }
FY_DEVICE bool fy_is_shared(int kind) { return kind == FY_SHARED_MAKE || kind == FY_SHARED_FINISH; }

FY_DEVICE int fy_inner_of(const fy_gpu_call &c, bool shared) { return shared ? c.shared : c.intermediate; }

/* Column tiles of a row tile. */
FY_DEVICE int fy_columns_of(const fy_gpu_call &c, int kind) {
    return fy_is_make(kind) ? fy_parts(fy_inner_of(c, fy_is_shared(kind)), FY_HALF_N) : fy_parts(c.hidden, FY_TILE_N);
}

#endif
