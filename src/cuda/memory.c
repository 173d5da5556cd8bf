/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make the own part, gather handles, map all parts, clear the own one, agree: for layers (backend.c) and for blocks of
 * callers (symmetric.c). A rank that fails still takes part in each agreement, so all ranks give up together and none
 * waits for it.
 */
#include "cuda/memory.h"

#include "cuda/backend.h"
#include "cuda/driver.h"
#include "cuda/error.h"
#include "cuda/handles.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/*
 * One thread of the process at a time maps and unmaps: drivers (580 among them) free memory of their own twice when
 * threads map and unmap the same allocations at once, and the process dies inside cuMemUnmap.
 */
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

static ferry_status map_part_alone(const fy_driver *d, CUmemGenericAllocationHandle handle, size_t bytes, int device,
                                   uint8_t **part) {
    CUdeviceptr at = 0;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    FY_DRIVER(d->cuMemAddressReserve(&at, bytes, 0, 0, 0), "reserving addresses for symmetric memory");
    CUresult result = d->cuMemMap(at, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        d->cuMemAddressFree(at, bytes);
        return fy_driver_fail(result, "mapping symmetric memory");
    }
    result = d->cuMemSetAccess(at, bytes, &access, 1);
    if (result != CUDA_SUCCESS) {
        d->cuMemUnmap(at, bytes);
        d->cuMemAddressFree(at, bytes);
        return fy_driver_fail(result,
                              "giving the device access to symmetric memory (devices must reach each other over "
                              "NVLink or PCIe)");
    }
    *part = (uint8_t *)at;
    return FERRY_OK;
}

static ferry_status map_part(const fy_driver *d, CUmemGenericAllocationHandle handle, size_t bytes, int device,
                             uint8_t **part) {
    pthread_mutex_lock(&mapping);
    ferry_status status = map_part_alone(d, handle, bytes, device, part);
    pthread_mutex_unlock(&mapping);
    return status;
}

static void unmap_part(const fy_driver *d, uint8_t *part, size_t bytes) {
    pthread_mutex_lock(&mapping);
    d->cuMemUnmap((CUdeviceptr)part, bytes);
    d->cuMemAddressFree((CUdeviceptr)part, bytes);
    pthread_mutex_unlock(&mapping);
}

static ferry_status make_part(const fy_driver *d, int threads, int device, size_t *bytes,
                              CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes =
                                    threads ? CU_MEM_HANDLE_TYPE_NONE : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    size_t grain = 0;
    FY_DRIVER(d->cuMemGetAllocationGranularity(&grain, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
              "asking for the granularity of symmetric memory");
    *bytes = (*bytes + grain - 1) / grain * grain;
    FY_DRIVER(d->cuMemCreate(handle, *bytes, &kind, 0), "allocating symmetric memory on the device");
    return FERRY_OK;
}

/* Peers' handles as handles of this process; the caller releases those of processes. */
static ferry_status gather_handles(ferry_comm *comm, const fy_driver *d, int threads, CUmemGenericAllocationHandle mine,
                                   ferry_status made, CUmemGenericAllocationHandle *all) {
    /* Threads hold every handle open until all have mapped it (the agreement after mapping). */
    if (threads) {
        FY_TRY(fy_agree(comm, made, "allocating symmetric memory"));
        return fy_allgather(comm, &mine, all, sizeof mine);
    }
    int fd = -1, fds[FY_MAX_RANKS];
    if (made == FERRY_OK) {
        CUresult result = d->cuMemExportToShareableHandle(&fd, mine, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (result != CUDA_SUCCESS) made = fy_driver_fail(result, "exporting symmetric memory");
    }
    ferry_status status = fy_agree(comm, made, "allocating symmetric memory");
    if (status == FERRY_OK) status = fy_exchange_handles(comm, fd, fds);
    if (fd >= 0) close(fd);
    if (status != FERRY_OK) return status;
    all[comm->rank] = mine;
    for (int r = 0; r < comm->nranks; r++) {
        if (r == comm->rank) continue;
        CUresult result = CUDA_SUCCESS;
        if (status == FERRY_OK)
            result = d->cuMemImportFromShareableHandle(&all[r], (void *)(uintptr_t)fds[r],
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (result != CUDA_SUCCESS) {
            all[r] = 0;
            status = fy_driver_fail(result, "importing a peer's symmetric memory");
        }
        close(fds[r]);
    }
    return status;
}

/* Waits for this stream alone: waiting for the device would spoil what another thread records there. */
static ferry_status clear_part(uint8_t *part, size_t bytes, cudaStream_t stream) {
    FY_CUDA(cudaMemsetAsync(part, 0, bytes, stream), "clearing symmetric memory");
    FY_CUDA(cudaStreamSynchronize(stream), "clearing symmetric memory");
    return FERRY_OK;
}

ferry_status fy_gpu_memory_create(ferry_comm *comm, int device, size_t bytes, const char *what, fy_gpu_memory *memory) {
    const fy_driver *d = NULL;
    CUmemGenericAllocationHandle mine = 0, all[FY_MAX_RANKS] = {0};
    int threads = comm->config.bootstrap.same_process || comm->nranks == 1;
    memset(memory, 0, sizeof *memory);
    memory->ranks = comm->nranks;
    memory->rank = comm->rank;
    memory->bytes = bytes ? bytes : 1;
    ferry_status status = fy_driver_load(&d);
    if (status == FERRY_OK) status = make_part(d, threads, device, &memory->bytes, &mine);
    status = gather_handles(comm, d, threads, mine, status, all);
    for (int r = 0; r < comm->nranks && status == FERRY_OK; r++)
        status = map_part(d, all[r], memory->bytes, device, &memory->part[r]);
    if (status == FERRY_OK) status = clear_part(memory->part[comm->rank], memory->bytes, fy_gpu_comm_of(comm)->side);
    status = fy_agree(comm, status, what);
    for (int r = 0; r < comm->nranks && !threads; r++)
        if (r != comm->rank && all[r]) d->cuMemRelease(all[r]);
    if (mine) d->cuMemRelease(mine);
    fy_memory_count(&comm->memory, (int64_t)memory->bytes);
    if (status != FERRY_OK) fy_gpu_memory_destroy(comm, memory);
    return status;
}

void fy_gpu_memory_destroy(ferry_comm *comm, fy_gpu_memory *memory) {
    const fy_driver *d;
    if (memory->ranks == 0 || fy_driver_load(&d) != FERRY_OK) return;
    for (int r = 0; r < memory->ranks; r++) {
        if (memory->part[r]) unmap_part(d, memory->part[r], memory->bytes);
    }
    fy_memory_count(&comm->memory, -(int64_t)memory->bytes);
    memset(memory, 0, sizeof *memory);
}
