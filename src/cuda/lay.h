/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Laying parts out in one allocation: every part is aligned to 1,024 bytes, enough for the copy engine and any
 * vector.
 */
#ifndef FERRY_CUDA_LAY_H
#define FERRY_CUDA_LAY_H

#include <stdint.h>

static inline uint64_t fy_gpu_take(uint64_t *cursor, int64_t bytes) {
    uint64_t at = *cursor;
    *cursor = (at + (uint64_t)bytes + 1023) & ~UINT64_C(1023);
    return at;
}

/* Sets pointer `field` of `*t` to the next part, `count` items long; `base` and `cursor` are the caller's. */
#define FY_GPU_PART(t, field, count)                                                                                   \
    (t)->field = (void *)(base + fy_gpu_take(&cursor, (int64_t)(count) * (int64_t)sizeof *(t)->field))

#endif
