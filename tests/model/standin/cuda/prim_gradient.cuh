/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_gradient.cuh, of which the code under test wants nothing. */
#ifndef FERRY_CUDA_PRIM_GRADIENT_CUH
#define FERRY_CUDA_PRIM_GRADIENT_CUH
#endif
