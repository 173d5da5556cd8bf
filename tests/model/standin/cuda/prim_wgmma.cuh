/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_wgmma.cuh: nothing is multiplied here. */
#ifndef FERRY_CUDA_PRIM_WGMMA_CUH
#define FERRY_CUDA_PRIM_WGMMA_CUH

enum { FY_BOX_BYTES = 64 * 64 * 2 };

#endif
