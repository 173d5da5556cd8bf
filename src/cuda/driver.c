/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions, looked up once for the process by the first of maps.c and memory.c that
 * needs them. A look-up that failed is made again by the next call.
 */
#include "cuda/driver.h"

#include "cuda/error.h"

#include <pthread.h>

static fy_driver table;
static int loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ferry_status find(const char *name, unsigned version, void **entry) {
    enum cudaDriverEntryPointQueryResult found;
    FY_CUDA(cudaGetDriverEntryPointByVersion(name, entry, version, cudaEnableDefault, &found),
            "looking for the CUDA driver's functions");
    if (found == cudaDriverEntryPointSuccess && *entry) return FERRY_OK;
    return fy_fail(FERRY_E_UNSUPPORTED, "the CUDA driver has no %s; a driver for CUDA 12 or later is needed", name);
}

static ferry_status fill(void) {
#define FIND(name, version) FY_TRY(find(#name, version, (void **)&table.name));
    FY_DRIVER_MAP(FIND)
#undef FIND
    return FERRY_OK;
}

ferry_status fy_driver_load(const fy_driver **driver) {
    pthread_mutex_lock(&lock);
    ferry_status status = loaded ? FERRY_OK : fill();
    loaded = status == FERRY_OK;
    pthread_mutex_unlock(&lock);
    *driver = &table;
    return status;
}

ferry_status fy_driver_fail(CUresult result, const char *doing) {
    const char *words = NULL;
    if (loaded) table.cuGetErrorString(result, &words);
    return fy_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? FERRY_E_MEMORY : FERRY_E_CUDA, "%s: %s (driver error %d)",
                   doing, words ? words : "unknown", (int)result);
}
