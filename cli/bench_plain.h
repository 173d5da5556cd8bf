/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain product on a GPU: C [rows, columns] = A [rows, depth] x B [columns, depth]^T, BF16 with F32 sums, by the
 * layer's own means (tiles of 128 x 256 x 64, four stages, bulk stores) and nothing else. The yardstick of `ferry
 * bench`.
 */
#ifndef FERRY_CLI_BENCH_PLAIN_H
#define FERRY_CLI_BENCH_PLAIN_H

#include <cuda.h>
#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PLAIN_TILE_ROWS = 128,
    PLAIN_TILE_COLUMNS = 256,
    PLAIN_STEP = 64,      /* along the contraction */
    PLAIN_STORE_ROWS = 64 /* of a box of C */
};

/* Extents are whole tiles. Maps are 2-dimensional: boxes of a tile's rows of A, of a tile's columns of B, of
 * PLAIN_STORE_ROWS rows of C. */
typedef struct bench_plain {
    CUtensorMap a, b, c;
    int row_tiles, column_tiles, steps;
} bench_plain;

/* Once per device, before the first launch. */
cudaError_t bench_plain_load(void);
cudaError_t bench_plain_launch(const bench_plain *p, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
