/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a whole warp or block, and what else of CUDA C makes lanes wait or lets others go first: as the hardware
 * has them, over the coroutines of scheduler.h. */
#ifndef FERRY_LANES_TOGETHER_H
#define FERRY_LANES_TOGETHER_H

#include "scheduler.h"

inline int lane_number() { return (int)threadIdx.x & 31; }

template <class T>
T exchange_with(unsigned mask, T value, int from, const char *purpose) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a lane brings at most so much");
    uint64_t mine = 0;
    std::memcpy(&mine, &value, sizeof value);
    std::memcpy(&value, &exchange(mask, mine, purpose)[from & 31], sizeof value);
    return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
    return exchange_with(mask, value, from, "__shfl_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
    int lane = lane_number();
    return exchange_with(mask, value, lane >= distance ? lane - distance : lane, "__shfl_up_sync");
}

/* The lanes that have brought `value`. */
inline unsigned lanes_with(const uint64_t *brought, uint64_t value) {
    unsigned lanes = 0;
    for (int i = 0; i < 32; i++) lanes |= (unsigned)(brought[i] == value) << i;
    return lanes;
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
    return lanes_with(exchange(mask, yes != 0, "__ballot_sync"), 1);
}
inline int __any_sync(unsigned mask, int yes) { return lanes_with(exchange(mask, yes != 0, "__any_sync"), 1) != 0; }
inline int __all_sync(unsigned mask, int yes) { return lanes_with(exchange(mask, yes != 0, "__all_sync"), 0) == 0; }
inline unsigned __match_any_sync(unsigned mask, int value) {
    return lanes_with(exchange(mask, (uint32_t)value, "__match_any_sync"), (uint32_t)value);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { meet_warp(mask, "__syncwarp"); }
inline void __syncthreads() { meet_block(); }

template <class T>
T atomicAdd(T *p, T value) {
    step();
    *p += value;
    return *p - value;
}
inline void atomicMin(unsigned *p, unsigned value) { *p = min(*p, value); }
inline void atomicMax(unsigned long long *p, unsigned long long value) { *p = max(*p, value); }
inline unsigned atomicCAS_system(unsigned *p, unsigned expected, unsigned value) {
    unsigned seen = *p;
    if (seen == expected) *p = value;
    return seen;
}

inline void __nanosleep(unsigned) { rest(); }

/* Launches follow each other here. */
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}

#endif
