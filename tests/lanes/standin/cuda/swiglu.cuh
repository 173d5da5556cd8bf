/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/swiglu.cuh: the chip's own functions are not here, and nobody calls what is made of them. */
#ifndef FERRY_CUDA_SWIGLU_CUH
#define FERRY_CUDA_SWIGLU_CUH

#include "rules/swiglu.h"

void fy_swiglu_pair(float &g0, float &g1, float u0, float u1);

#endif
