/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One F32 map, checked and encoded, for launch_backward.c where the caller wants gradients in F32. A box is 32 columns
 * wide, the 128 bytes of the swizzle, and the map always has three dimensions.
 */
#include "cuda/maps_gradient.h"

#include "cuda/driver.h"

ferry_status fy_gpu_map_f32(CUtensorMap *map, fy_gpu_array a) {
    if ((uintptr_t)a.data % 16 || a.row_stride % 4 || (a.matrices > 1 && a.matrix_stride % 4))
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "%s: address %p, row stride %lld, expert stride %lld: expected a multiple of 16 bytes and "
                       "multiples of 4 elements",
                       a.name, a.data, (long long)a.row_stride, (long long)a.matrix_stride);
    int64_t matrix_stride = a.matrices > 1 ? a.matrix_stride : a.row_stride * a.rows;
    cuuint64_t size[3] = {(cuuint64_t)a.columns, (cuuint64_t)a.rows, (cuuint64_t)a.matrices};
    cuuint64_t stride[2] = {(cuuint64_t)a.row_stride * 4, (cuuint64_t)matrix_stride * 4};
    cuuint32_t box[3] = {32, 64, 1}, step[3] = {1, 1, 1};
    const fy_driver *driver;
    FY_TRY(fy_driver_load(&driver));
    CUresult result =
        driver->cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, (void *)(uintptr_t)a.data, size, stride,
                                       box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "%s: the copy engine refuses [%lld, %lld, %lld] with strides %lld and %lld elements (driver "
                       "error %d)",
                       a.name, (long long)a.matrices, (long long)a.rows, (long long)a.columns, (long long)matrix_stride,
                       (long long)a.row_stride, (int)result);
    return FERRY_OK;
}
