/* SPDX-License-Identifier: Apache-2.0 */
/* A block's size and alignment stand right before it. */
#include "cli/check/hooks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct block_head {
    size_t bytes, align;
} block_head;

static int refuses(check_hooks *hooks) {
    int64_t call = atomic_fetch_add(&hooks->calls, 1) + 1;
    if (hooks->fail_at == 0 || call < hooks->fail_at || (call > hooks->fail_at && !hooks->forever)) return 0;
    if (hooks->deadly) raise(SIGKILL);
    atomic_store(&hooks->failed, 1);
    return 1;
}

static void *hooks_alloc(void *user, size_t bytes, size_t align) {
    check_hooks *hooks = user;
    void *memory = NULL;
    if (align < 64) align = 64;
    if (refuses(hooks) || posix_memalign(&memory, align, align + bytes) != 0) return NULL;
    char *block = (char *)memory + align;
    memcpy(block - sizeof(block_head), &(block_head){bytes, align}, sizeof(block_head));
    memset(block, 0xa5, bytes); /* whoever needs zeros writes them */
    atomic_fetch_add(&hooks->live_blocks, 1);
    int64_t live = atomic_fetch_add(&hooks->live_bytes, (int64_t)bytes) + (int64_t)bytes;
    int64_t peak = atomic_load(&hooks->peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&hooks->peak_bytes, &peak, live)) {
    }
    return block;
}

static void hooks_free(void *user, void *block, size_t bytes) {
    check_hooks *hooks = user;
    block_head head;
    memcpy(&head, (char *)block - sizeof head, sizeof head);
    if (head.bytes != bytes) atomic_fetch_add(&hooks->wrong_sizes, 1);
    atomic_fetch_sub(&hooks->live_blocks, 1);
    atomic_fetch_sub(&hooks->live_bytes, (int64_t)head.bytes);
    free((char *)block - head.align);
}

ferry_allocator check_hooks_allocator(check_hooks *hooks) { return (ferry_allocator){hooks_alloc, hooks_free, hooks}; }
