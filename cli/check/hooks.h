/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's allocator that counts, fails on demand, and notices memory that is given back with another size. */
#ifndef FERRY_CLI_CHECK_HOOKS_H
#define FERRY_CLI_CHECK_HOOKS_H

#include "ferry/ferry.h"

/* Outlives everything that was allocated through it, on any rank. */
typedef struct check_hooks {
    _Atomic int64_t calls, live_blocks, live_bytes, peak_bytes;
    _Atomic int wrong_sizes; /* blocks given back with another size than they were asked for */
    _Atomic int failed;      /* 1 once an allocation was refused */
    int64_t fail_at;         /* the call, counted from 1, that is refused; 0: none */
    int forever;             /* 1: so are all calls after it */
    int deadly;              /* 1: instead of refusing, it ends the process */
} check_hooks;

ferry_allocator check_hooks_allocator(check_hooks *hooks);

#endif
