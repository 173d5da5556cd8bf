/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loading thread of a block: feeds the operands of the chosen tiles (role_choose.cuh) through the stages with the
 * copy engine.
 * Reads: x ring, h ring, staged tokens, weights.  Writes: shared memory alone.
 * Waits on: chosen, empty[stage], both inside the block.
 * Publishes: begun, when it has taken over a tile; full[stage], whose first one of a tile also tells the consumers of
 *            the tile.
 * Registers: the producer warpgroup's 120.
 */
#ifndef FERRY_CUDA_ROLE_LOAD_CUH
#define FERRY_CUDA_ROLE_LOAD_CUH

#include "cuda/block.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/trace.cuh"

enum {
    FY_STEP_CLOCKS = 1024, /* of a whole tile's products */
    FY_SHORT_DEPTH = 64,   /* steps of a contraction that tiles are through before they are far apart */
    FY_FEW_TILES = 4       /* of a piece: its last one is much of what reads a column of weights */
};

/* The first block of rows, for a trace; -1: tokens of the shared expert. */
FY_DEVICE int fy_rows_of(const fy_work &w) { return fy_is_shared(w.kind) ? -1 : w.counter; }

/* The next tile, when it is chosen; what it waits for is what the choosing warp waits for. */
FY_DEVICE fy_work fy_next_tile(fy_block *block, int number) {
    bool there = fy_barrier_test(&block->chosen, number & 1);
    if (!there) {
        fy_trace_begin(0, -1);
        fy_barrier_wait(&block->chosen, number & 1);
    }
    fy_work w = block->work[number % FY_WORKS];
    if (!there) fy_trace_end(0, w.site != 0 ? w.site : (int)FY_MARK_CHOICE);
    return w;
}

template <bool KEEP>
FY_DEVICE void fy_load_role(const fy_gpu_call &c, uint8_t *shared) {
    fy_block *block = fy_block_of(shared);
    fy_stage at = {0, 0};
    for (int number = 0;; number++) {
        fy_work w = fy_next_tile(block, number);
        fy_barrier_wait(&block->empty[at.index], at.parity ^ 1);
        if (w.kind == FY_END) {
            fy_barrier_arrive(&block->full[at.index]);
            return;
        }
        fy_barrier_arrive(&block->begun);
        const fy_gpu_maps *maps = fy_is_shared(w.kind) ? &c.shared_expert : &c.routed;
        bool make = fy_is_make(w.kind);
        bool half = w.rows <= FY_BLOCK_ROWS; /* the second warpgroup has no rows here */
        const CUtensorMap *a = half ? (make ? &maps->x_short : &maps->h_short) : (make ? &maps->x : &maps->h),
                          *b0 = make ? &maps->gate : &maps->down, *b1 = &maps->up;
        int matrix = w.matrix;
        if (c.tables_of_weights && !fy_is_shared(w.kind)) {
            b0 = c.table.weight_map + (make ? 0 : 2 * c.local_experts) + matrix;
            b1 = c.table.weight_map + c.local_experts + matrix;
            matrix = 0;
            fy_fence_map(b0);
            if (make) fy_fence_map(b1);
        }
        /* With a context a tile's two blocks of x may lie in different places. */
        const CUtensorMap *a1 = a;
        int row1 = 0;
        bool apart = KEEP && w.kind == FY_MAKE;
        if (apart) {
            bool saved0 = w.counter < c.context_blocks, saved1 = w.counter + 1 < c.context_blocks;
            a = saved0 ? &c.keep.x : &maps->x_short;
            a1 = saved1 ? &c.keep.x : &maps->x_short;
            row1 = saved1 ? w.row + FY_BLOCK_ROWS : w.load_row + FY_BLOCK_ROWS;
            if (saved0) w.load_row = w.row;
        }
        int row = w.load_row, column = w.column * (make ? FY_HALF_N : FY_TILE_N);
        int depth = w.depth;
        /* A tile of few rows would run ahead of those before it, with which it shares columns of weights, and memory
         * would be read once more for them. */
        bool paced = half && w.behind > 0 && w.behind <= FY_FEW_TILES && depth > FY_SHORT_DEPTH;
        uint32_t began = fy_clock();
        fy_trace_begin(0, fy_rows_of(w));
        for (int k = 0; k < depth; k++) {
            while (paced && fy_clock() - began < (uint32_t)k * FY_STEP_CLOCKS) continue;
            if (k > 0) fy_barrier_wait(&block->empty[at.index], at.parity ^ 1);
            uint64_t *full = &block->full[at.index];
            fy_barrier_arrive_expecting(full, half ? FY_STAGE_BYTES - FY_A_BYTES / 2 : FY_STAGE_BYTES);
            uint8_t *to_b = fy_stage_b(shared, at.index);
            fy_load_box2(fy_stage_a(shared, at.index), a, full, k * FY_TILE_K, row);
            if (apart && !half)
                fy_load_box2(fy_stage_a(shared, at.index) + FY_A_BYTES / 2, a1, full, k * FY_TILE_K, row1);
            fy_load_box3(to_b, b0, full, k * FY_TILE_K, column, matrix);
            if (make) fy_load_box3(to_b + FY_B_BYTES / 2, b1, full, k * FY_TILE_K, column, matrix);
            fy_next_stage(at);
        }
        fy_trace_end(0, FY_MARK_FEED);
    }
}

#endif
