/* SPDX-License-Identifier: Apache-2.0 */
/* The plain product of cli/bench_plain.h for the Python benchmarks: C [rows, columns] = A x B^T, row-major BF16. */
#include "cli/bench_plain.h"
#include "core/status.h"
#include "cuda/maps.h"

#include <stddef.h>
#include <stdint.h>

/* NULL, or why not. Extents are whole tiles. */
FERRY_API const char *plain_product(const void *a, const void *b, void *c, int64_t rows, int64_t columns, int64_t depth,
                                    void *stream);

static ferry_status map(CUtensorMap *to, const void *data, int64_t rows, int64_t columns, int box, const char *name) {
    return fy_gpu_map(to, (fy_gpu_array){data, 0, rows, columns, 0, columns, name, FERRY_BF16}, box);
}

const char *plain_product(const void *a, const void *b, void *c, int64_t rows, int64_t columns, int64_t depth,
                          void *stream) {
    bench_plain p = {.row_tiles = (int)(rows / PLAIN_TILE_ROWS),
                     .column_tiles = (int)(columns / PLAIN_TILE_COLUMNS),
                     .steps = (int)(depth / PLAIN_STEP)};
    int device = 0, blocks = 0;
    if (rows % PLAIN_TILE_ROWS || columns % PLAIN_TILE_COLUMNS || depth % PLAIN_STEP) return "extents: no whole tiles";
    if (map(&p.a, a, rows, depth, PLAIN_TILE_ROWS, "A") || map(&p.b, b, columns, depth, PLAIN_TILE_COLUMNS, "B") ||
        map(&p.c, c, rows, columns, PLAIN_STORE_ROWS, "C"))
        return ferry_last_error();
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = bench_plain_load();
    if (error == cudaSuccess) error = bench_plain_launch(&p, blocks, stream);
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
