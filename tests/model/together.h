/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of a whole warp or block. They are never called here: what uses them is written again, one coroutine for a
 * warp. But they have to be declared.
 */
#ifndef FERRY_MODEL_TOGETHER_H
#define FERRY_MODEL_TOGETHER_H

#include <cstdlib>

[[noreturn]] inline void not_for_one_thread() { std::abort(); }

template <class T>
T __shfl_sync(unsigned, T, int) {
    not_for_one_thread();
}
template <class T>
T __shfl_up_sync(unsigned, T, int) {
    not_for_one_thread();
}
inline unsigned __ballot_sync(unsigned, int) { not_for_one_thread(); }
inline unsigned __match_any_sync(unsigned, int) { not_for_one_thread(); }
inline int __all_sync(unsigned, int) { not_for_one_thread(); }
inline int __any_sync(unsigned, int) { not_for_one_thread(); }
inline void __syncwarp(unsigned = 0) { not_for_one_thread(); }
inline void __syncthreads() { not_for_one_thread(); }
inline int __syncthreads_count(int) { not_for_one_thread(); }
inline void __nanosleep(unsigned) { not_for_one_thread(); }
inline void atomicMin(unsigned *, unsigned) { not_for_one_thread(); }
inline void atomicMax(unsigned long long *, unsigned long long) { not_for_one_thread(); }
inline int atomicAdd(int *, int) { not_for_one_thread(); }
inline unsigned long long atomicAdd(unsigned long long *, unsigned long long) { not_for_one_thread(); }
inline void cudaGridDependencySynchronize() { not_for_one_thread(); }
inline void cudaTriggerProgrammaticLaunchCompletion() { not_for_one_thread(); }

#endif
