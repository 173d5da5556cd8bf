/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps for the copy engine: matrices of BF16 or F32 rows in swizzled boxes of 128 bytes. */
#ifndef FERRY_CUDA_MAPS_H
#define FERRY_CUDA_MAPS_H

#include "core/status.h"

#include <cuda.h>

/* [matrices][rows][columns]; strides in elements. What lies outside reads as zero and is not written. */
typedef struct fy_gpu_array {
    const void *data;
    int64_t matrices, rows, columns, matrix_stride, row_stride;
    const char *name;  /* for errors */
    ferry_dtype dtype; /* BF16 or F32 */
} fy_gpu_array;

/* matrices == 0: a map of two dimensions, else of three. */
ferry_status fy_gpu_map(CUtensorMap *map, fy_gpu_array array, int box_rows);

#endif
