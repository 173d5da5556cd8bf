/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps of F32 matrices, written in swizzled boxes of 32 columns x 64 rows. */
#ifndef FERRY_CUDA_MAPS_GRADIENT_H
#define FERRY_CUDA_MAPS_GRADIENT_H

#include "cuda/maps.h"

ferry_status fy_gpu_map_f32(CUtensorMap *map, fy_gpu_array array);

#endif
