/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA C has and C++ has not, for device code that is compiled for the host: keywords, vectors, functions of a
 * thread. Functions of a whole warp or block are never called here (what uses them is written again, one coroutine for
 * a warp), but have to be declared.
 */
#ifndef FERRY_MODEL_STANDIN_CUDA_WORDS_H
#define FERRY_MODEL_STANDIN_CUDA_WORDS_H

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>

using std::max;
using std::min;

#define __device__
#define __forceinline__ inline
#define __shared__ static

struct int2 {
    int x, y;
};
struct int4 {
    int x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct place_in_grid {
    int x;
};
inline place_in_grid threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T __ldcs(const T *p) {
    return *p;
}
template <class T>
T __ldcg(const T *p) {
    return *p;
}
template <class T>
void __stcg(T *p, T value) {
    *p = value;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

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
inline void atomicMin(unsigned *, unsigned) { not_for_one_thread(); }
inline void atomicMax(unsigned long long *, unsigned long long) { not_for_one_thread(); }
inline int atomicAdd(int *, int) { not_for_one_thread(); }
inline unsigned long long atomicAdd(unsigned long long *, unsigned long long) { not_for_one_thread(); }
inline void cudaGridDependencySynchronize() { not_for_one_thread(); }
inline void cudaTriggerProgrammaticLaunchCompletion() { not_for_one_thread(); }

#endif
