/* SPDX-License-Identifier: Apache-2.0 */
/* One block per multiprocessor: a thread that feeds stages, two warpgroups that each take 64 rows of every tile. */
#include "cli/bench_plain.h"

#include "cuda/multiply.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/prim_matrix.cuh"

enum {
    GROUP_ROWS = 16 /* row tiles that take a column of B together, so that they share it in the second-level cache */
};
static_assert((int)PLAIN_TILE_ROWS == FY_TILE_M && (int)PLAIN_TILE_COLUMNS == FY_TILE_N &&
                  (int)PLAIN_STEP == FY_TILE_K && (int)PLAIN_STORE_ROWS == FY_BLOCK_ROWS,
              "the layer's tile");

struct place {
    int row, column;
};

FY_DEVICE place place_of(const bench_plain &p, int tile) {
    int group = tile / (GROUP_ROWS * p.column_tiles), rest = tile % (GROUP_ROWS * p.column_tiles);
    int rows = min((int)GROUP_ROWS, p.row_tiles - group * GROUP_ROWS);
    return {(group * GROUP_ROWS + rest % rows) * PLAIN_TILE_ROWS, rest / rows * PLAIN_TILE_COLUMNS};
}

FY_DEVICE void load_tiles(const bench_plain &p, uint8_t *shared) {
    fy_block *block = fy_block_of(shared);
    fy_stage at = {0, 0};
    for (int tile = blockIdx.x; tile < p.row_tiles * p.column_tiles; tile += gridDim.x) {
        place to = place_of(p, tile);
        for (int k = 0; k < p.steps; k++, fy_next_stage(at)) {
            uint64_t *full = &block->full[at.index];
            fy_barrier_wait(&block->empty[at.index], at.parity ^ 1);
            fy_barrier_arrive_expecting(full, FY_STAGE_BYTES);
            fy_load_box2(fy_stage_a(shared, at.index), &p.a, full, k * PLAIN_STEP, to.row);
            fy_load_box2(fy_stage_b(shared, at.index), &p.b, full, k * PLAIN_STEP, to.column);
        }
    }
}

/* 64 rows x 256 columns in four pieces, through two buffers that the copy engine empties while the next tile runs. */
FY_DEVICE void store_tile(const bench_plain &p, const float (&sums)[128], place to, uint8_t *buffers, int group,
                          int thread) {
    int lane = thread & 31, row = (thread / 32) * 16 + (lane & 15);
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        uint8_t *buffer = buffers + (piece & 1) * FY_PIECE_BYTES;
        if (thread == 0) fy_store_wait_read<1>();
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int f = piece * 32 + j * 8;
            fy_store_matrices(fy_shared_address(buffer) + fy_box_at(row, j * 2 + (lane >> 4)),
                              fy_pack(sums[f], sums[f + 1]), fy_pack(sums[f + 2], sums[f + 3]),
                              fy_pack(sums[f + 4], sums[f + 5]), fy_pack(sums[f + 6], sums[f + 7]));
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        uint32_t from = fy_uniform(fy_shared_address(buffer));
        int column = fy_uniform(to.column + piece * PLAIN_STEP), to_row = fy_uniform(to.row + group * PLAIN_STORE_ROWS);
        if (thread == 0) {
            fy_store_box2(&p.c, from, column, to_row);
            fy_store_commit();
        }
    }
}

FY_DEVICE void multiply_tiles(const bench_plain &p, uint8_t *shared, int group) {
    int thread = threadIdx.x & 127;
    float sums[128];
    fy_stage at = {0, 0};
    const fy_operands operands = fy_operands_of(shared, group);
    for (int tile = blockIdx.x; tile < p.row_tiles * p.column_tiles; tile += gridDim.x) {
        fy_multiply<0, 0>(sums, operands, at, p.steps, 0, [](int) {});
        store_tile(p, sums, place_of(p, tile), fy_group_buffer(shared, group), group, thread);
    }
    if (thread == 0) fy_store_wait_written();
}

__global__ void __launch_bounds__(FY_THREADS, 1) bench_plain_kernel(const __grid_constant__ bench_plain p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    fy_block *block = fy_block_of(shared);
    if (threadIdx.x == 0) {
        fy_open_stages(block->full, block->empty);
        fy_barrier_init_fence();
    }
    __syncthreads();
    int group = threadIdx.x / 128;
    if (group == 0) {
        fy_registers_give<56>();
        if (threadIdx.x == 0) load_tiles(p, shared);
    } else {
        fy_registers_take<224>();
        multiply_tiles(p, shared, group - 1);
    }
}

cudaError_t bench_plain_load(void) {
    return cudaFuncSetAttribute(bench_plain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, FY_SHARED_BYTES);
}

cudaError_t bench_plain_launch(const bench_plain *p, int blocks, cudaStream_t stream) {
    bench_plain_kernel<<<blocks, FY_THREADS, FY_SHARED_BYTES, stream>>>(*p);
    return cudaGetLastError();
}
