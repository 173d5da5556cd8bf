/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions that the backend uses, found at run time: the library links no driver, so one binary runs with
 * and without a GPU.
 */
#ifndef FERRY_CUDA_DRIVER_H
#define FERRY_CUDA_DRIVER_H

#include "core/status.h"

#include <cuda.h>

/* name, the CUDA version whose form of the function is meant */
#define FY_DRIVER_MAP(X)                                                                                               \
    X(cuTensorMapEncodeTiled, 12000)                                                                                   \
    X(cuMemGetAllocationGranularity, 10020)                                                                            \
    X(cuMemCreate, 10020)                                                                                              \
    X(cuMemRelease, 10020)                                                                                             \
    X(cuMemAddressReserve, 10020)                                                                                      \
    X(cuMemAddressFree, 10020)                                                                                         \
    X(cuMemMap, 10020)                                                                                                 \
    X(cuMemUnmap, 10020)                                                                                               \
    X(cuMemSetAccess, 10020)                                                                                           \
    X(cuMemExportToShareableHandle, 10020)                                                                             \
    X(cuMemImportFromShareableHandle, 10020)                                                                           \
    X(cuGetErrorString, 6000)

typedef struct fy_driver {
#define FY_DRIVER_FIELD(name, version) __typeof__(&name) name;
    FY_DRIVER_MAP(FY_DRIVER_FIELD)
#undef FY_DRIVER_FIELD
} fy_driver;

/* Loads the table on the first call; E_UNSUPPORTED names what the driver lacks. */
ferry_status fy_driver_load(const fy_driver **driver);
/* A driver call's failure as an error: `doing`, then the driver's words. */
ferry_status fy_driver_fail(CUresult result, const char *doing);

#define FY_DRIVER(call, doing)                                                                                         \
    do {                                                                                                               \
        CUresult fy_driver_result = (call);                                                                            \
        if (fy_driver_result != CUDA_SUCCESS) return fy_driver_fail(fy_driver_result, doing);                          \
    } while (0)

#endif
