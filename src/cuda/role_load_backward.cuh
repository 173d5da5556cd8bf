/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loading thread of a block in the backward: feeds the operands of the chosen tiles through the stages with the
 * copy engine. A gradient tile's g and u follow its operands through the same stages.
 * Reads: rows of x, g, u (context or ring), dout, dg, du, w h'; weights.  Writes: shared memory alone.
 * Waits on: chosen, empty[stage], both inside the block.
 * Publishes: begun, when a tile is nearly fed; full[stage], whose first one of a tile also tells the consumers of the
 *            tile.
 * Registers: the producer warpgroup's 72.
 */
#ifndef FERRY_CUDA_ROLE_LOAD_BACKWARD_CUH
#define FERRY_CUDA_ROLE_LOAD_BACKWARD_CUH

#include "cuda/block_backward.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/trace.cuh"

enum { FY_CHOOSE_AT = 8 }; /* a tile's stages that are left to feed when the next ticket is taken */

/* The next stage to fill, and how many of the tile's are filled until the next ticket is to be taken; negative: it is.
 */
typedef struct fy_feed {
    fy_backward_block *block;
    uint8_t *shared;
    fy_stage at;
    int until_next;
} fy_feed;

/* Once the stage is empty. */
FY_DEVICE void fy_feed_open(fy_feed &f) {
    if (f.until_next-- == 0) fy_barrier_arrive(&f.block->begun);
    fy_barrier_wait(&f.block->empty[f.at.index], f.at.parity ^ 1);
}

/* Row of a block of x, g or u in its map: `*saved` says which of the two. */
FY_DEVICE int fy_place_of_block(const fy_gpu_call &c, const fy_gpu_backward &b, bool shared, int block, int *saved) {
    *saved = !shared && fy_is_saved(b, block);
    return (shared || *saved ? block : block % c.ring_blocks) * FY_BLOCK_ROWS;
}

/* `steps` steps of A (rows of up to two blocks, straight) with B turned: columns `column`.. of rows of a weight. */
FY_DEVICE void fy_feed_rows(fy_feed &f, const CUtensorMap *a, int row, int used, const CUtensorMap *w, int column,
                            int matrix, int steps) {
#pragma unroll 1
    for (int k = 0; k < steps; k++) {
        fy_feed_open(f);
        uint64_t *full = &f.block->full[f.at.index];
        uint8_t *to_a = fy_stage_a(f.shared, f.at.index), *to_b = fy_stage_b(f.shared, f.at.index);
        fy_barrier_arrive_expecting(full, FY_STAGE_BYTES - (2 - used) * FY_BOX_BYTES);
        fy_load_box2(to_a, a, full, k * FY_TILE_K, row);
        if (used == 2) fy_load_box2(to_a + FY_BOX_BYTES, a, full, k * FY_TILE_K, row + FY_BLOCK_ROWS);
#pragma unroll
        for (int i = 0; i < 4; i++)
            fy_load_box3(to_b + i * FY_BOX_BYTES, w, full, column + i * 64, k * FY_TILE_K, matrix);
        fy_next_stage(f.at);
    }
}

/* `steps` blocks of rows, both operands turned. */
FY_DEVICE void fy_feed_blocks(fy_feed &f, const CUtensorMap *a, int a_column, int a_row, const CUtensorMap *w,
                              int w_column, int w_row, int steps) {
#pragma unroll 1
    for (int k = 0; k < steps; k++) {
        fy_feed_open(f);
        uint64_t *full = &f.block->full[f.at.index];
        uint8_t *to_a = fy_stage_a(f.shared, f.at.index), *to_b = fy_stage_b(f.shared, f.at.index);
        fy_barrier_arrive_expecting(full, FY_STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < 2; i++) fy_load_box2(to_a + i * FY_BOX_BYTES, a, full, a_column + i * 64, a_row);
#pragma unroll
        for (int i = 0; i < 4; i++) fy_load_box2(to_b + i * FY_BOX_BYTES, w, full, w_column + i * 64, w_row);
        a_row += FY_BLOCK_ROWS;
        w_row += FY_BLOCK_ROWS;
        fy_next_stage(f.at);
    }
}

FY_DEVICE void fy_feed_weight(fy_feed &f, const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t) {
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    int row = (t.shared ? t.block : t.block % c.ring_blocks) * FY_BLOCK_ROWS;
    int m = t.m * FY_TILE_M, n = t.column * FY_TILE_N;
    if (t.depth == 0) { /* an expert without rows: one stage, to carry the description */
        fy_feed_open(f);
        fy_barrier_arrive(&f.block->full[f.at.index]);
        fy_next_stage(f.at);
    } else if (t.which == FY_TASK_DOWN) {
        fy_feed_blocks(f, &maps.dout, m, row, &maps.wh, n, row, t.depth);
    } else {
        /* Saved rows come first: the segment's rows of x are in the context, then in the ring. */
        const CUtensorMap *a = t.which == FY_TASK_GATE ? &maps.dg : &maps.du;
        int saved = t.shared ? 0 : max(0, min(t.depth, b.context_blocks - t.block));
        if (saved > 0) fy_feed_blocks(f, a, m, row, &maps.x[1], n, t.block * FY_BLOCK_ROWS, saved);
        row += saved * FY_BLOCK_ROWS;
        fy_feed_blocks(f, a, m, row, &maps.x[0], n, row, t.depth - saved);
    }
}

/* x with rows of gate and up, nothing turned. */
FY_DEVICE void fy_feed_remake(fy_feed &f, const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t,
                              const CUtensorMap *gate, const CUtensorMap *up, int matrix) {
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    int used = fy_tile_blocks_used(t.rows), saved[2], row[2];
#pragma unroll
    for (int i = 0; i < 2; i++) row[i] = fy_place_of_block(c, b, t.shared, t.row / FY_BLOCK_ROWS + i, &saved[i]);
#pragma unroll 1
    for (int k = 0; k < t.depth; k++) {
        fy_feed_open(f);
        uint64_t *full = &f.block->full[f.at.index];
        uint8_t *to_a = fy_stage_a(f.shared, f.at.index), *to_b = fy_stage_b(f.shared, f.at.index);
        fy_barrier_arrive_expecting(full, FY_STAGE_BYTES - (2 - used) * FY_BOX_BYTES);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (i < used) fy_load_box2(to_a + i * FY_BOX_BYTES, &maps.x[saved[i]], full, k * FY_TILE_K, row[i]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            fy_load_box3(to_b + i * FY_BOX_BYTES, i < 2 ? gate : up, full, k * FY_TILE_K,
                         t.column * FY_HALF_N + i % 2 * 64, matrix);
        fy_next_stage(f.at);
    }
}

/* g and u of a gradient tile, 64 columns at a time, where operands would be. */
FY_DEVICE void fy_feed_gate_up(fy_feed &f, const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t) {
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    int used = fy_tile_blocks_used(t.rows), saved[2], row[2];
#pragma unroll
    for (int i = 0; i < 2; i++) row[i] = fy_place_of_block(c, b, t.shared, t.row / FY_BLOCK_ROWS + i, &saved[i]);
#pragma unroll 1
    for (int s = 0; s < FY_GRAD_STEPS; s++) {
        fy_feed_open(f);
        uint64_t *full = &f.block->full[f.at.index];
        uint8_t *to = fy_stage_a(f.shared, f.at.index);
        fy_barrier_arrive_expecting(full, 2 * used * FY_BOX_BYTES);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == used) break;
            fy_load_box2(to + i * FY_BOX_BYTES, &maps.g[saved[i]], full, t.column * FY_TILE_N + s * 64, row[i]);
            fy_load_box2(to + (2 + i) * FY_BOX_BYTES, &maps.u[saved[i]], full, t.column * FY_TILE_N + s * 64, row[i]);
        }
        fy_next_stage(f.at);
    }
}

FY_DEVICE void fy_feed_task(fy_feed &f, const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t) {
    if (t.kind == FY_WEIGHT) {
        fy_feed_weight(f, c, b, t);
        return;
    }
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    int kind = fy_task_plain(t.kind), used = fy_tile_blocks_used(t.rows), matrix = t.matrix,
        column = t.column * FY_TILE_N;
    const CUtensorMap *gate = &maps.gate, *up = &maps.up, *down = &maps.down;
    if (!t.shared && b.tables_of_weights) {
        gate = b.table.weight_map + matrix;
        up = gate + c.local_experts;
        down = up + c.local_experts;
        fy_fence_map(gate);
        fy_fence_map(up);
        fy_fence_map(down);
        matrix = 0;
    }
    if (kind == FY_REMAKE) {
        fy_feed_remake(f, c, b, t, gate, up, matrix);
    } else if (kind == FY_GRAD) {
        fy_feed_rows(f, &maps.dout, t.load_row, used, down, column, matrix, t.depth);
        fy_feed_gate_up(f, c, b, t);
    } else {
        fy_feed_rows(f, &maps.dg, t.load_row, used, gate, column, matrix, t.depth);
        fy_feed_rows(f, &maps.du, t.load_row, used, up, column, matrix, t.depth);
    }
}

FY_DEVICE void fy_load_backward_role(const fy_gpu_call &c, const fy_gpu_backward &b, uint8_t *shared) {
    fy_feed f = {fy_backward_block_of(shared), shared, {0, 0}, -1};
    for (int number = 0;; number++) {
        fy_trace_begin(0, -1);
        fy_barrier_wait(&f.block->chosen, number & 1);
        fy_trace_end(0, FY_MARK_CHOICE);
        fy_fence_async_global();
        const fy_task &t = f.block->task[number % FY_WORKS];
        fy_feed_open(f);
        f.block->first[f.at.index] = number % FY_WORKS;
        if (t.kind == FY_LAST) {
            fy_barrier_arrive(&f.block->full[f.at.index]);
            return;
        }
        f.until_next = max(0, fy_stages_of(t) - FY_CHOOSE_AT);
        fy_trace_begin(0, fy_rows_of(t));
        fy_feed_task(f, c, b, t);
        fy_trace_end(0, FY_MARK_FEED);
    }
}

#endif
