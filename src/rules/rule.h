/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes a header of this folder a rule: pure inline functions that compile as C17 and as CUDA, for host and
 * device. Floating-point rules use single IEEE operations only and no library calls, so that every compiler that is
 * told not to contract (-ffp-contract=off, --fmad=false) gives the same bits. They hold no branches, so that loops
 * over them become vector code.
 */
#ifndef FERRY_RULES_RULE_H
#define FERRY_RULES_RULE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FY_RULE static __host__ __device__ __forceinline__
#else
#define FY_RULE static inline
#endif

FY_RULE uint32_t fy_bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FY_RULE float fy_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
