/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_wgmma_turned.cuh: nothing is multiplied here. */
#ifndef FERRY_CUDA_PRIM_WGMMA_TURNED_CUH
#define FERRY_CUDA_PRIM_WGMMA_TURNED_CUH

enum { FY_BOX_BYTES = 64 * 64 * 2 };

#endif
