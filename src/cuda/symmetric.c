/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers' blocks of symmetric memory. A block has one number on all ranks, the lowest that none of them uses, and a
 * row of the device's table of parts. Calls stage their tokens wherever these lie, so no launch reads that table.
 */
#include "cuda/symmetric.h"

#include "cuda/error.h"
#include "cuda/scope.h"

#include <string.h>

struct fy_gpu_block {
    fy_gpu_memory memory;
    int number;
    fy_gpu_block *next;
};

/* Before a block is made. */
typedef struct want {
    uint64_t bytes;
    uint64_t used; /* a bit for each number */
} want;

static ferry_status choose_number(ferry_comm *comm, size_t bytes, int *number) {
    const fy_gpu_comm *g = fy_gpu_comm_of(comm);
    want mine = {.bytes = bytes}, all[FY_MAX_RANKS];
    for (const fy_gpu_block *b = g->blocks; b; b = b->next) mine.used |= UINT64_C(1) << b->number;
    FY_TRY(fy_allgather(comm, &mine, all, sizeof mine));
    uint64_t used = 0;
    for (int r = 0; r < comm->nranks; r++) {
        used |= all[r].used;
        if (all[r].bytes != all[0].bytes)
            return fy_fail(FERRY_E_MISMATCH,
                           "ferry_sym_alloc: ranks disagree about the bytes: rank 0 wants %llu, rank %d %llu",
                           (unsigned long long)all[0].bytes, r, (unsigned long long)all[r].bytes);
    }
    if (~used == 0)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "ferry_sym_alloc: %d blocks are in use, expected fewer; free one, or make "
                       "larger ones and share them out",
                       FY_GPU_BLOCKS);
    *number = __builtin_ctzll(~used);
    return FERRY_OK;
}

/* The block's row of the table: its parts, or NULLs once it is gone. */
static ferry_status tell_device(fy_gpu_comm *g, int number, uint8_t *const part[FY_GPU_MAX_RANKS]) {
    const size_t row = FY_GPU_MAX_RANKS * sizeof(uint8_t *);
    if (g->parts == NULL) {
        FY_CUDA(cudaMalloc((void **)&g->parts, FY_GPU_BLOCKS * row), "allocating the table of symmetric memory");
        FY_CUDA(cudaMemset(g->parts, 0, FY_GPU_BLOCKS * row), "clearing the table of symmetric memory");
        FY_CUDA(cudaDeviceSynchronize(), "clearing the table of symmetric memory");
    }
    FY_CUDA(cudaMemcpyAsync(g->parts + number * FY_GPU_MAX_RANKS, part, row, cudaMemcpyHostToDevice, g->side),
            "telling the device where symmetric memory is");
    FY_CUDA(cudaStreamSynchronize(g->side), "telling the device where symmetric memory is");
    return FERRY_OK;
}

static ferry_status make(ferry_comm *comm, size_t bytes, fy_gpu_block *block) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_on_device scope = {0, 0};
    ferry_status status = fy_agree(comm, fy_enter_device(g->device, &scope), "ferry_sym_alloc");
    if (status == FERRY_OK) status = fy_gpu_memory_create(comm, g->device, bytes, "ferry_sym_alloc", &block->memory);
    if (status == FERRY_OK) {
        status = fy_agree(comm, tell_device(g, block->number, block->memory.part), "ferry_sym_alloc");
        if (status != FERRY_OK) fy_gpu_memory_destroy(comm, &block->memory);
    }
    fy_leave_device(&scope);
    return status;
}

ferry_status fy_gpu_sym_alloc(ferry_comm *comm, size_t bytes, void **memory) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_gpu_block *block = NULL;
    int number = 0;
    FY_TRY(choose_number(comm, bytes, &number));
    ferry_status status = fy_alloc(&comm->memory, sizeof *block, "a block of symmetric memory", (void **)&block);
    status = fy_agree(comm, status, "ferry_sym_alloc");
    if (status == FERRY_OK) {
        block->number = number;
        status = make(comm, bytes, block);
    }
    if (status != FERRY_OK) {
        fy_free(&comm->memory, block, sizeof *block);
        return status;
    }
    block->next = g->blocks;
    g->blocks = block;
    *memory = block->memory.part[comm->rank];
    return FERRY_OK;
}

static void end_block(ferry_comm *comm, fy_gpu_block *block) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    uint8_t *const none[FY_GPU_MAX_RANKS] = {NULL};
    fy_on_device scope = {0, 0};
    fy_enter_device(g->device, &scope);
    if (g->called) cudaEventSynchronize(g->last); /* it may read the block; deadlines bound it */
    tell_device(g, block->number, none);
    fy_gpu_memory_destroy(comm, &block->memory);
    fy_leave_device(&scope);
    fy_free(&comm->memory, block, sizeof *block);
}

/* The block that holds the bytes on this rank, and the link to it. */
static fy_gpu_block **find(fy_gpu_block **link, const void *pointer, size_t bytes, size_t *offset) {
    for (; *link; link = &(*link)->next) {
        const fy_gpu_memory *m = &(*link)->memory;
        uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)m->part[m->rank];
        if (at < base || at - base > m->bytes || bytes > m->bytes - (at - base)) continue;
        *offset = at - base;
        return link;
    }
    return NULL;
}

void fy_gpu_sym_free(ferry_comm *comm, void *memory) {
    size_t offset;
    fy_gpu_block **link = find(&fy_gpu_comm_of(comm)->blocks, memory, 1, &offset);
    if (link == NULL) return;
    fy_gpu_block *block = *link;
    *link = block->next;
    end_block(comm, block);
}

void fy_gpu_sym_end(ferry_comm *comm) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    while (g->blocks) {
        fy_gpu_block *block = g->blocks;
        g->blocks = block->next;
        end_block(comm, block);
    }
    cudaFree(g->parts);
}

ferry_status fy_gpu_sym_peer(ferry_comm *comm, const void *memory, int rank, void **peer) {
    size_t offset;
    fy_gpu_block **link = find(&fy_gpu_comm_of(comm)->blocks, memory, 1, &offset);
    if (link == NULL)
        return fy_fail(FERRY_E_INVALID, "ferry_sym_peer: %p is not in symmetric memory of this communicator", memory);
    *peer = (*link)->memory.part[rank] + offset;
    return FERRY_OK;
}

int fy_gpu_sym_find(const fy_gpu_comm *g, const void *pointer, size_t bytes, int64_t *offset) {
    fy_gpu_block *first = g->blocks;
    size_t at;
    fy_gpu_block **link = find(&first, pointer, bytes, &at);
    if (link == NULL) return -1;
    *offset = (int64_t)at;
    return (*link)->number;
}
