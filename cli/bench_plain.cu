/* SPDX-License-Identifier: Apache-2.0 */
/* One block per multiprocessor: a thread that feeds stages, two warpgroups that each take 64 rows of every tile. */
#include "cli/bench_plain.h"

#include "cuda/prim_copy.cuh"
#include "cuda/prim_matrix.cuh"
#include "cuda/prim_wgmma.cuh"

enum {
    THREADS = 384,
    STAGES = 4,
    A_BYTES = PLAIN_TILE_ROWS * PLAIN_STEP * 2,
    B_BYTES = PLAIN_TILE_COLUMNS * PLAIN_STEP * 2,
    STAGE_BYTES = A_BYTES + B_BYTES,
    PIECE_BYTES = PLAIN_STORE_ROWS * PLAIN_STEP * 2, /* 64 rows x 64 columns of C */
    BARRIERS_AT = STAGES * STAGE_BYTES + 4 * PIECE_BYTES,
    SHARED_BYTES = BARRIERS_AT + 2 * STAGES * 8,
    GROUP_ROWS = 16 /* row tiles that take a column of B together, so that they share it in the second-level cache */
};
static_assert(SHARED_BYTES <= 232448, "a block has 227 KB of shared memory");

struct place {
    int row, column;
};

FY_DEVICE place place_of(const bench_plain &p, int tile) {
    int group = tile / (GROUP_ROWS * p.column_tiles), rest = tile % (GROUP_ROWS * p.column_tiles);
    int rows = min((int)GROUP_ROWS, p.row_tiles - group * GROUP_ROWS);
    return {(group * GROUP_ROWS + rest % rows) * PLAIN_TILE_ROWS, rest / rows * PLAIN_TILE_COLUMNS};
}

struct stage_cursor {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

FY_DEVICE void load_tiles(const bench_plain &p, uint8_t *shared, uint64_t *full, uint64_t *empty) {
    stage_cursor at;
    for (int tile = blockIdx.x; tile < p.row_tiles * p.column_tiles; tile += gridDim.x) {
        place to = place_of(p, tile);
        for (int k = 0; k < p.steps; k++, at.next()) {
            uint8_t *stage = shared + at.stage * STAGE_BYTES;
            fy_barrier_wait(&empty[at.stage], at.parity ^ 1);
            fy_barrier_arrive_expecting(&full[at.stage], STAGE_BYTES);
            fy_load_box2(stage, &p.a, &full[at.stage], k * PLAIN_STEP, to.row);
            fy_load_box2(stage + A_BYTES, &p.b, &full[at.stage], k * PLAIN_STEP, to.column);
        }
    }
}

/* 64 rows x 256 columns in four pieces, through two buffers that the copy engine empties while the next tile runs. */
FY_DEVICE void store_tile(const bench_plain &p, const float (&sums)[128], place to, uint8_t *buffers, int group,
                          int thread) {
    int lane = thread & 31, row = (thread / 32) * 16 + (lane & 15);
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        uint8_t *buffer = buffers + (piece & 1) * PIECE_BYTES;
        if (thread == 0) fy_store_wait_read<1>();
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int chunk = j * 2 + (lane >> 4), f = piece * 32 + j * 8;
            fy_store_matrices(fy_shared_address(buffer) + row * 128 + ((chunk ^ (row & 7)) << 4),
                              fy_pack(sums[f], sums[f + 1]), fy_pack(sums[f + 2], sums[f + 3]),
                              fy_pack(sums[f + 4], sums[f + 5]), fy_pack(sums[f + 6], sums[f + 7]));
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        if (thread == 0) {
            fy_store_box2(&p.c, buffer, to.column + piece * PLAIN_STEP, to.row + group * PLAIN_STORE_ROWS);
            fy_store_commit();
        }
    }
}

FY_DEVICE void multiply_tiles(const bench_plain &p, uint8_t *shared, uint64_t *full, uint64_t *empty, int group) {
    int thread = threadIdx.x & 127;
    float sums[128];
    stage_cursor at;
    for (int tile = blockIdx.x; tile < p.row_tiles * p.column_tiles; tile += gridDim.x) {
        int last = -1;
        for (int k = 0; k < p.steps; k++, at.next()) {
            uint8_t *stage = shared + at.stage * STAGE_BYTES;
            fy_barrier_wait(&full[at.stage], at.parity);
            uint64_t a = fy_operand_descriptor(stage + group * (A_BYTES / 2)),
                     b = fy_operand_descriptor(stage + A_BYTES);
            fy_product_begin();
#pragma unroll
            for (int part = 0; part < 4; part++) fy_product_step(sums, a + part * 2, b + part * 2, (k | part) != 0);
            fy_product_commit();
            if (last >= 0) {
                fy_product_wait<1>();
                if (thread == 0) fy_barrier_arrive(&empty[last]);
            }
            last = at.stage;
        }
        fy_product_wait<0>();
        if (thread == 0) fy_barrier_arrive(&empty[last]);
        store_tile(p, sums, place_of(p, tile), shared + STAGES * STAGE_BYTES + group * 2 * PIECE_BYTES, group, thread);
    }
    if (thread == 0) fy_store_wait_written();
}

__global__ void __launch_bounds__(THREADS, 1) bench_plain_kernel(const __grid_constant__ bench_plain p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    uint64_t *full = (uint64_t *)(shared + BARRIERS_AT), *empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            fy_barrier_init(&full[i], 1);
            fy_barrier_init(&empty[i], 2);
        }
        fy_barrier_init_fence();
    }
    __syncthreads();
    int group = threadIdx.x / 128;
    if (group == 0) {
        fy_registers_give<56>();
        if (threadIdx.x == 0) load_tiles(p, shared, full, empty);
    } else {
        fy_registers_take<224>();
        multiply_tiles(p, shared, full, empty, group - 1);
    }
}

cudaError_t bench_plain_load(void) {
    return cudaFuncSetAttribute(bench_plain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
}

cudaError_t bench_plain_launch(const bench_plain *p, int blocks, cudaStream_t stream) {
    bench_plain_kernel<<<blocks, THREADS, SHARED_BYTES, stream>>>(*p);
    return cudaGetLastError();
}
