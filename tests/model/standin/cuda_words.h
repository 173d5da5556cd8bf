/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA C has and C++ has not, for device code that is compiled for the host: keywords, vectors, functions of a
 * thread. Functions of a whole warp or block are in together.h, of which each program of tests has its own.
 */
#ifndef FERRY_MODEL_STANDIN_CUDA_WORDS_H
#define FERRY_MODEL_STANDIN_CUDA_WORDS_H

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

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
    unsigned x;
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
template <class T>
void __stcs(T *p, T value) {
    *p = value;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

#include "together.h"

#endif
