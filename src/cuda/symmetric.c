/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' blocks of symmetric memory. Calls stage their tokens wherever these lie. */
#include "cuda/symmetric.h"

#include "cuda/error.h"
#include "cuda/scope.h"

struct fy_gpu_block {
    fy_gpu_memory memory;
    fy_gpu_block *next;
};

static ferry_status agree_on_bytes(ferry_comm *comm, size_t bytes) {
    uint64_t mine = bytes, all[FY_MAX_RANKS];
    FY_TRY(fy_allgather(comm, &mine, all, sizeof mine));
    for (int r = 0; r < comm->nranks; r++)
        if (all[r] != all[0])
            return fy_fail(FERRY_E_MISMATCH,
                           "ferry_sym_alloc: ranks disagree about the bytes: rank 0 wants %llu, rank %d %llu",
                           (unsigned long long)all[0], r, (unsigned long long)all[r]);
    return FERRY_OK;
}

static ferry_status make(ferry_comm *comm, size_t bytes, fy_gpu_block *block) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_on_device scope = {0};
    ferry_status status = fy_agree(comm, fy_enter_device(g->device, &scope), "ferry_sym_alloc");
    if (status == FERRY_OK) status = fy_gpu_memory_create(comm, g->device, bytes, "ferry_sym_alloc", &block->memory);
    fy_leave_device(&scope);
    return status;
}

ferry_status fy_gpu_sym_alloc(ferry_comm *comm, size_t bytes, void **memory) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_gpu_block *block = NULL;
    FY_TRY(agree_on_bytes(comm, bytes));
    ferry_status status = fy_alloc(&comm->memory, sizeof *block, "a block of symmetric memory", (void **)&block);
    status = fy_agree(comm, status, "ferry_sym_alloc");
    if (status == FERRY_OK) status = make(comm, bytes, block);
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
    fy_on_device scope = {0};
    fy_enter_device(g->device, &scope);
    if (g->called) cudaEventSynchronize(g->last); /* it may read the block; deadlines bound it */
    fy_gpu_memory_destroy(comm, &block->memory);
    fy_leave_device(&scope);
    fy_free(&comm->memory, block, sizeof *block);
}

/* The link to the block of this rank that `pointer` is in; NULL: it is in none. */
static fy_gpu_block **find(fy_gpu_block **link, const void *pointer, size_t *offset) {
    for (; *link; link = &(*link)->next) {
        const fy_gpu_memory *m = &(*link)->memory;
        uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)m->part[m->rank];
        if (at < base || at - base >= m->bytes) continue;
        *offset = at - base;
        return link;
    }
    return NULL;
}

void fy_gpu_sym_free(ferry_comm *comm, void *memory) {
    size_t offset;
    fy_gpu_block **link = find(&fy_gpu_comm_of(comm)->blocks, memory, &offset);
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
}

ferry_status fy_gpu_sym_peer(ferry_comm *comm, const void *memory, int rank, void **peer) {
    size_t offset;
    fy_gpu_block **link = find(&fy_gpu_comm_of(comm)->blocks, memory, &offset);
    if (link == NULL)
        return fy_fail(FERRY_E_INVALID, "ferry_sym_peer: %p is not in symmetric memory of this communicator", memory);
    *peer = (*link)->memory.part[rank] + offset;
    return FERRY_OK;
}
