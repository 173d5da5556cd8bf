/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor map, checked and encoded, for engine.c and launch_backward.c. A box is 128 bytes wide, as the swizzle is;
 * what the copy engine cannot address is refused by the matrix's name.
 */
#include "cuda/maps.h"

#include "cuda/driver.h"

ferry_status fy_gpu_map(CUtensorMap *map, fy_gpu_array a, int box_rows) {
    int bytes = a.dtype == FERRY_F32 ? 4 : 2, unit = 16 / bytes;
    if ((uintptr_t)a.data % 16 || a.row_stride % unit || (a.matrices > 1 && a.matrix_stride % unit))
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "%s: address %p, row stride %lld, expert stride %lld: expected a multiple of 16 bytes and "
                       "multiples of %d elements",
                       a.name, a.data, (long long)a.row_stride, (long long)a.matrix_stride, unit);
    /* A single matrix may come with any stride to the next. */
    int64_t matrix_stride = a.matrices > 1 ? a.matrix_stride : a.row_stride * a.rows;
    cuuint64_t size[3] = {(cuuint64_t)a.columns, (cuuint64_t)a.rows, (cuuint64_t)a.matrices};
    cuuint64_t stride[2] = {(cuuint64_t)(a.row_stride * bytes), (cuuint64_t)(matrix_stride * bytes)};
    cuuint32_t box[3] = {(cuuint32_t)(128 / bytes), (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
    CUtensorMapDataType type =
        a.dtype == FERRY_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const fy_driver *driver;
    FY_TRY(fy_driver_load(&driver));
    CUresult result =
        driver->cuTensorMapEncodeTiled(map, type, a.matrices ? 3 : 2, (void *)(uintptr_t)a.data, size, stride, box,
                                       step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "%s: the copy engine refuses [%lld, %lld, %lld] with strides %lld and %lld elements (driver "
                       "error %d)",
                       a.name, (long long)a.matrices, (long long)a.rows, (long long)a.columns, (long long)matrix_stride,
                       (long long)a.row_stride, (int)result);
    return FERRY_OK;
}
