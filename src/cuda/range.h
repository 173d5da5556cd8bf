/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges on the host's timeline for profilers, by NVTX, whose headers come with the CUDA toolkit; built in where they
 * do. Without a profiler a range costs two calls through pointers that are NULL.
 */
#ifndef FERRY_CUDA_RANGE_H
#define FERRY_CUDA_RANGE_H

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define FY_HAVE_NVTX
#endif
#endif

static inline void fy_range_begin(const char *name) {
#ifdef FY_HAVE_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static inline void fy_range_end(void) {
#ifdef FY_HAVE_NVTX
    nvtxRangePop();
#endif
}

#endif
