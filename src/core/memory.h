/* SPDX-License-Identifier: Apache-2.0 */
/* The library's memory: every allocation goes through the communicator's hooks and is counted. Thread-safe. */
#ifndef FERRY_CORE_MEMORY_H
#define FERRY_CORE_MEMORY_H

#include "ferry/ferry.h"

#include <stdatomic.h>

typedef struct fy_memory {
    ferry_allocator hooks;
    _Atomic int64_t current; /* bytes held now, symmetric memory included */
    _Atomic int64_t peak;
} fy_memory;

/* hooks may be NULL or hold NULL functions: the C library. */
void fy_memory_init(fy_memory *memory, const ferry_allocator *hooks);
/* Zeroed, aligned to 64. bytes == 0 gives a valid pointer to nothing: NULL. E_MEMORY names `what` and the size. */
ferry_status fy_alloc(fy_memory *memory, size_t bytes, const char *what, void **out);
/* Accepts NULL; `bytes` as allocated. */
void fy_free(fy_memory *memory, void *block, size_t bytes);
/* Counts bytes that came from elsewhere (symmetric memory); negative on release. */
void fy_memory_count(fy_memory *memory, int64_t bytes);

#endif
