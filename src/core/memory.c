/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation through the caller's hooks, counted. */
#include "core/memory.h"

#include "core/status.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static void *library_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *memory = NULL;
    return posix_memalign(&memory, align, bytes) == 0 ? memory : NULL;
}

static void library_free(void *user, void *memory, size_t bytes) {
    (void)user;
    (void)bytes;
    free(memory);
}

void fy_memory_init(fy_memory *memory, const ferry_allocator *hooks) {
    const ferry_allocator library = {library_alloc, library_free, NULL};
    memory->hooks = hooks && hooks->alloc ? *hooks : library;
    atomic_init(&memory->current, 0);
    atomic_init(&memory->peak, 0);
}

ferry_status fy_alloc(fy_memory *memory, size_t bytes, const char *what, void **out) {
    void *block = NULL;
    if (bytes > 0) {
        /* More than any pointer difference can say is refused here, so that hooks need not. */
        if (bytes <= PTRDIFF_MAX) block = memory->hooks.alloc(memory->hooks.user, bytes, ALIGNMENT);
        if (!block)
            return fy_fail(FERRY_E_MEMORY, "%s: the allocator did not give %zu bytes (%lld bytes are held)", what,
                           bytes, (long long)atomic_load_explicit(&memory->current, memory_order_relaxed));
        memset(block, 0, bytes);
        fy_memory_count(memory, (int64_t)bytes);
    }
    *out = block;
    return FERRY_OK;
}

void fy_free(fy_memory *memory, void *block, size_t bytes) {
    if (!block) return;
    memory->hooks.free(memory->hooks.user, block, bytes);
    fy_memory_count(memory, -(int64_t)bytes);
}

void fy_memory_count(fy_memory *memory, int64_t bytes) {
    int64_t held = atomic_fetch_add_explicit(&memory->current, bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&memory->peak, memory_order_relaxed);
    while (held > peak && !atomic_compare_exchange_weak_explicit(&memory->peak, &peak, held, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
    }
}
