/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of each instruction set, and the sizes that all builds of kernels.c agree on. */
#ifndef FERRY_CPU_KERNELS_TABLES_H
#define FERRY_CPU_KERNELS_TABLES_H

#include "cpu/product.h"

extern const fy_kernels fy_kernels_portable;
#ifdef __x86_64__
extern const fy_kernels fy_kernels_avx2;
extern const fy_kernels fy_kernels_avx512;
#endif

/* A product packs this many k at a time: a strip of A and the panel of B stay in the first-level cache. */
enum { FY_BLOCK_DEPTH = 256 };
/* Scratch, in lanes of FY_BLOCK_DEPTH floats: all rows of A in strips that may be a quarter empty, one panel of B. */
enum { FY_A_LANES = FY_TILE_ROWS + FY_TILE_ROWS / 2, FY_B_LANES = 32 };

#endif
