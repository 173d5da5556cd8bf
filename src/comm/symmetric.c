/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory. Processes: every rank makes a segment, tells its name, maps the others' and takes its name away
 * before creation returns. Threads: every rank allocates its part and tells its handle.
 */
#include "comm/segment.h"

#include "comm/comm.h"
#include "core/layer.h"

#include <string.h>

enum { PAGE = 4096 };

/* What a rank tells the others about its part. */
typedef struct part {
    int32_t status;
    uint64_t bytes;
    unsigned long long free_bytes; /* of /dev/shm, when status is E_MEMORY */
    fy_symmetric *handle;          /* threads */
    char name[FY_SEGMENT_NAME];    /* processes */
} part;

static size_t part_bytes(size_t bytes) { return bytes == 0 ? 256 : (bytes + 255) & ~(size_t)255; }

/* The handle with its two tables of pointers behind it. */
static size_t handle_bytes(int nranks) {
    return sizeof(fy_symmetric) + (size_t)nranks * (sizeof(unsigned char *) + sizeof(fy_symmetric *));
}

size_t fy_symmetric_bytes(int nranks, size_t bytes) { return part_bytes(bytes) + handle_bytes(nranks); }

static ferry_status make_handle(ferry_comm *comm, size_t bytes, const char *what, fy_symmetric **out) {
    fy_symmetric *block = NULL;
    FY_TRY(fy_alloc(&comm->memory, handle_bytes(comm->nranks), what, (void **)&block));
    block->base = (unsigned char **)(block + 1);
    block->peers = (fy_symmetric **)(block->base + comm->nranks);
    block->bytes = bytes;
    block->hooks = comm->memory.hooks;
    block->handle_bytes = handle_bytes(comm->nranks);
    *out = block;
    return FERRY_OK;
}

static ferry_status make_part(ferry_comm *comm, fy_symmetric *block, const char *what, fy_named_segment *segment) {
    if (!comm->config.bootstrap.same_process) {
        FY_TRY(fy_segment_create(block->bytes, what, segment, &block->memory));
    } else {
        if (block->bytes <= PTRDIFF_MAX) block->memory = block->hooks.alloc(block->hooks.user, block->bytes, PAGE);
        if (!block->memory)
            return fy_fail(FERRY_E_MEMORY, "%s: the allocator did not give %zu bytes", what, block->bytes);
        memset(block->memory, 0, block->bytes);
    }
    fy_memory_count(&comm->memory, (int64_t)block->bytes);
    return FERRY_OK;
}

/* Gives back what this rank made; peers have nothing of it. */
static void unmake(ferry_comm *comm, fy_symmetric *block) {
    if (!block) return;
    if (block->memory) {
        if (comm->config.bootstrap.same_process)
            block->hooks.free(block->hooks.user, block->memory, block->bytes);
        else
            fy_segment_unmap(block->memory, block->bytes);
        fy_memory_count(&comm->memory, -(int64_t)block->bytes);
    }
    fy_free(&comm->memory, block, block->handle_bytes);
}

/* Whether all ranks have their parts, all of one size; `mine` and its sentence stand where this rank failed. */
static ferry_status check_parts(const ferry_comm *comm, const part *parts, const char *what, ferry_status mine) {
    for (int r = 0; r < comm->nranks; r++)
        if (parts[r].bytes != parts[0].bytes)
            return fy_fail(FERRY_E_MISMATCH,
                           "%s: ranks disagree about the bytes of symmetric memory: rank 0 wants %llu, rank %d %llu",
                           what, (unsigned long long)parts[0].bytes, r, (unsigned long long)parts[r].bytes);
    if (mine != FERRY_OK) return mine;
    for (int r = 0; r < comm->nranks; r++) {
        if (parts[r].status == FERRY_E_MEMORY && !comm->config.bootstrap.same_process)
            return fy_fail(FERRY_E_MEMORY,
                           "%s: rank %d could not have %llu bytes of shared memory, /dev/shm has %llu free", what, r,
                           (unsigned long long)parts[r].bytes, parts[r].free_bytes);
        if (parts[r].status != FERRY_OK)
            return fy_fail(parts[r].status == FERRY_E_MEMORY ? FERRY_E_MEMORY : FERRY_E_PEER,
                           "%s: rank %d could not make its %llu bytes of symmetric memory: %s", what, r,
                           (unsigned long long)parts[r].bytes, ferry_status_text((ferry_status)parts[r].status));
    }
    return FERRY_OK;
}

static void use_threads_parts(ferry_comm *comm, fy_symmetric *block, const part *parts) {
    for (int r = 0; r < comm->nranks; r++) {
        block->peers[r] = parts[r].handle;
        block->base[r] = parts[r].handle->memory;
    }
}

static ferry_status map_parts(ferry_comm *comm, fy_symmetric *block, const part *parts, const char *what) {
    ferry_status status = FERRY_OK;
    block->base[comm->rank] = block->memory;
    for (int r = 0; r < comm->nranks && status == FERRY_OK; r++)
        if (r != comm->rank) status = fy_segment_open(parts[r].name, block->bytes, what, &block->base[r]);
    status = fy_agree(comm, status, what);
    for (int r = 0; r < comm->nranks && status != FERRY_OK; r++)
        if (r != comm->rank) fy_segment_unmap(block->base[r], block->bytes);
    return status;
}

ferry_status fy_symmetric_create(ferry_comm *comm, size_t bytes, const char *what, fy_symmetric **out) {
    int threads = comm->config.bootstrap.same_process;
    fy_symmetric *block = NULL;
    part mine = {.bytes = bytes}, parts[FY_MAX_RANKS];
    fy_named_segment segment = {.lock = -1};
    ferry_status made = bytes > PTRDIFF_MAX ? fy_fail(FERRY_E_MEMORY, "%s: %zu bytes are too many", what, bytes)
                                            : make_handle(comm, part_bytes(bytes), what, &block);
    if (made == FERRY_OK) {
        made = make_part(comm, block, what, &segment);
        memcpy(mine.name, segment.name, sizeof mine.name);
        /* Set before peers can see the handle: every rank holds every part. */
        atomic_init(&block->references, comm->nranks);
    }
    mine.status = made;
    mine.handle = block;
    mine.free_bytes = made == FERRY_E_MEMORY ? fy_segment_free_bytes() : 0;

    ferry_status status = fy_allgather(comm, &mine, parts, sizeof mine);
    if (status == FERRY_OK) status = check_parts(comm, parts, what, made);
    if (status == FERRY_OK && threads) use_threads_parts(comm, block, parts);
    if (status == FERRY_OK && !threads) status = map_parts(comm, block, parts, what);
    if (!threads && made == FERRY_OK) fy_segment_unlink(&segment);
    if (status != FERRY_OK) {
        unmake(comm, block);
        return status;
    }
    block->number = comm->symmetric_made++;
    block->next = comm->symmetric;
    comm->symmetric = block;
    *out = block;
    return FERRY_OK;
}

fy_symmetric *fy_symmetric_numbered(ferry_comm *comm, int64_t number) {
    fy_symmetric *block = comm->symmetric;
    while (block && block->number != number) block = block->next;
    return block;
}

/* Threads: the last rank to drop a part frees it, through its owner's hooks. */
static void drop(fy_symmetric *block) {
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1) return;
    ferry_allocator hooks = block->hooks;
    hooks.free(hooks.user, block->memory, block->bytes);
    hooks.free(hooks.user, block, block->handle_bytes);
}

void fy_symmetric_destroy(ferry_comm *comm, fy_symmetric *block) {
    if (!block) return;
    fy_symmetric **link = &comm->symmetric;
    while (*link && *link != block) link = &(*link)->next;
    if (*link) *link = block->next;

    if (!comm->config.bootstrap.same_process) {
        for (int r = 0; r < comm->nranks; r++)
            if (r != comm->rank) fy_segment_unmap(block->base[r], block->bytes);
        unmake(comm, block);
        return;
    }
    fy_memory_count(&comm->memory, -(int64_t)(block->bytes + block->handle_bytes));
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank) drop(block->peers[r]);
    drop(block); /* last: its table was being read */
}

fy_symmetric *fy_symmetric_find(ferry_comm *comm, const void *pointer, size_t bytes, size_t *offset) {
    for (fy_symmetric *block = comm->symmetric; block; block = block->next) {
        uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)block->memory;
        if (at >= base && at - base <= block->bytes && bytes <= block->bytes - (at - base)) {
            *offset = at - base;
            return block;
        }
    }
    return NULL;
}

ferry_status ferry_sym_alloc(ferry_comm *comm, size_t bytes, void **memory) {
    if (!comm || !memory) return fy_fail(FERRY_E_INVALID, "ferry_sym_alloc: %s is NULL", comm ? "memory" : "comm");
    FY_TRY(fy_fault_status(comm));
    const fy_backend *backend = fy_backend_of(comm->config.backend);
    if (backend->sym_alloc) return backend->sym_alloc(comm, bytes, memory);
    fy_symmetric *block = NULL;
    FY_TRY(fy_symmetric_create(comm, bytes, "ferry_sym_alloc", &block));
    *memory = block->memory;
    return FERRY_OK;
}

void ferry_sym_free(ferry_comm *comm, void *memory) {
    if (!comm || !memory) return;
    const fy_backend *backend = fy_backend_of(comm->config.backend);
    if (backend->sym_free) {
        backend->sym_free(comm, memory);
        return;
    }
    size_t offset;
    fy_symmetric_destroy(comm,
                         fy_symmetric_find(comm, memory, 1, &offset)); /* 1: where a block ends, another may begin */
}

ferry_status ferry_sym_peer(ferry_comm *comm, const void *memory, int rank, void **peer) {
    if (!comm || !peer) return fy_fail(FERRY_E_INVALID, "ferry_sym_peer: %s is NULL", comm ? "peer" : "comm");
    if (rank < 0 || rank >= comm->nranks)
        return fy_fail(FERRY_E_INVALID, "ferry_sym_peer: rank is %d, expected 0..%d", rank, comm->nranks - 1);
    const fy_backend *backend = fy_backend_of(comm->config.backend);
    if (backend->sym_peer) return backend->sym_peer(comm, memory, rank, peer);
    size_t offset;
    fy_symmetric *block = fy_symmetric_find(comm, memory, 1, &offset);
    if (!block)
        return fy_fail(FERRY_E_INVALID, "ferry_sym_peer: %p is not in symmetric memory of this communicator", memory);
    *peer = block->base[rank] + offset;
    return FERRY_OK;
}
