/* SPDX-License-Identifier: Apache-2.0 */
/* The few driver functions that are needed are declared here by their documented signatures and loaded by name. */
#include "cli/gpus.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* CUresult, CUdevice and CUdevice_attribute are int in the driver's interface. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(init, "cuInit", (unsigned flags))                                                                                \
    X(driver_version, "cuDriverGetVersion", (int *version))                                                            \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    X(device, "cuDeviceGet", (int *device, int ordinal))                                                               \
    X(name, "cuDeviceGetName", (char *name, int room, int device))                                                     \
    X(total_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                                               \
    X(attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                                      \
    X(can_access_peer, "cuDeviceCanAccessPeer", (int *can, int device, int peer))

typedef struct driver {
#define DRIVER_MEMBER(member, symbol, arguments) int(*member) arguments;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
} driver;

enum { ATTRIBUTE_PROCESSORS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };

/* The name of the first function that is not there, or NULL. */
static const char *load(void *library, driver *d) {
    /* A data pointer becomes a function pointer through memory: ISO C has no cast for it. */
#define DRIVER_LOAD(member, symbol, arguments)                                                                         \
    {                                                                                                                  \
        void *address = dlsym(library, symbol);                                                                        \
        if (!address) return symbol;                                                                                   \
        memcpy(&d->member, &address, sizeof address);                                                                  \
    }
    DRIVER_FUNCTIONS(DRIVER_LOAD)
#undef DRIVER_LOAD
    return NULL;
}

static void read_gpu(const driver *d, const int *devices, int count, int index, gpu_info *gpu) {
    size_t bytes = 0;
    int device = devices[index];
    if (d->name(gpu->name, sizeof gpu->name, device)) snprintf(gpu->name, sizeof gpu->name, "unknown");
    if (d->total_memory(&bytes, device) == 0) gpu->memory_bytes = (int64_t)bytes;
    d->attribute(&gpu->processors, ATTRIBUTE_PROCESSORS, device);
    d->attribute(&gpu->major, ATTRIBUTE_MAJOR, device);
    d->attribute(&gpu->minor, ATTRIBUTE_MINOR, device);
    for (int peer = 0; peer < count; peer++) {
        if (peer != index) d->can_access_peer(&gpu->peer[peer], device, devices[peer]);
    }
}

static void read_all(gpu_list *list, void *library) {
    driver d;
    int devices[GPU_MAX], count = 0;
    const char *missing = load(library, &d);
    if (missing) {
        snprintf(list->absent, sizeof list->absent, "the CUDA driver has no %s", missing);
        return;
    }
    d.driver_version(&list->driver);
    int error = d.init(0);
    if (!error) error = d.device_count(&count);
    if (error || count == 0) {
        snprintf(list->absent, sizeof list->absent, "the CUDA driver finds no GPU (code %d)", error);
        return;
    }
    if (count > GPU_MAX) count = GPU_MAX;
    for (int i = 0; i < count; i++) {
        if (d.device(&devices[i], i)) return;
    }
    for (int i = 0; i < count; i++) read_gpu(&d, devices, count, i, &list->gpu[i]);
    list->count = count;
}

void gpu_list_read(gpu_list *list) {
    *list = (gpu_list){.count = 0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(list->absent, sizeof list->absent, "no CUDA driver (libcuda.so.1)");
        return;
    }
    read_all(list, library);
    dlclose(library);
}
