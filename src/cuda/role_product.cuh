/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumers: two warpgroups, each 64 rows x 256 columns of every chosen tile.
 * Reads: stages in shared memory.  Writes: y (finish tiles, role_push.cuh); with a context g and u.
 * Waits on: full[stage], taken, both inside the block.
 * Publishes: empty[stage]; posted: a column tile of h is staged (make tiles, SwiGLU applied), or y is stored. The rest
 *            is the choosing warp's (role_signal.cuh).
 * Registers: 192; 128 hold the accumulators.
 */
#ifndef FERRY_CUDA_ROLE_PRODUCT_CUH
#define FERRY_CUDA_ROLE_PRODUCT_CUH

#include "cuda/gate_up.cuh"
#include "cuda/multiply.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/role_push.cuh"
#include "cuda/swiglu.cuh"
#include "cuda/trace.cuh"

/* Until the warpgroup's last post is taken, and with it what was in the buffer. `posts`: so far. */
FY_DEVICE void fy_await_taken(fy_block *block, int group, uint32_t posts) {
    if (posts > 0) fy_barrier_wait(&block->taken[group], (posts - 1) & 1);
}

/* By all warps, each behind what it has staged or stored. */
FY_DEVICE void fy_post_tile(fy_block *block, const fy_post &post, int group, int thread) {
    if (thread == 0) block->post[group] = post;
    __syncwarp();
    if (thread % 32 == 0) fy_barrier_arrive(&block->posted[group]);
}

/* h of 64 rows x 128 columns, in two pieces of 64 columns. */
FY_DEVICE void fy_stage_h(const fy_gpu_call &c, float (&acc)[128], uint8_t *buffer, int thread) {
    if (c.limit < FY_NO_LIMIT) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            acc[i] = fy_clamp_gate(acc[i], c.limit);
            acc[64 + i] = fy_clamp_up(acc[64 + i], c.limit);
        }
    }
#pragma unroll
    for (int i = 0; i < 64; i += 2) fy_swiglu_pair(acc[i], acc[i + 1], acc[64 + i], acc[64 + i + 1]);
    int lane = thread & 31, row = (thread / 32) * 16 + (lane & 15);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int f = j * 8;
        fy_store_matrices(fy_piece_at(buffer, j, row, lane), fy_pack(acc[f], acc[f + 1]),
                          fy_pack(acc[f + 2], acc[f + 3]), fy_pack(acc[f + 4], acc[f + 5]),
                          fy_pack(acc[f + 6], acc[f + 7]));
    }
    fy_fence_async_shared();
}

/* g and u for the backward: in the context, or in the ring, whose last macrobatch of the walk a backward takes first.
 * True: in the ring, where the next macrobatch writes too. */
FY_DEVICE bool fy_keep_gate_up(const fy_gpu_call &c, const float (&acc)[128], const fy_work &w, uint8_t *buffer,
                               int group, int thread) {
    bool shared = w.kind == FY_SHARED_MAKE;
    const fy_gpu_keep_maps &maps = shared ? c.keep_shared : c.keep;
    int block = w.row / FY_BLOCK_ROWS + group, saved = shared || block < c.context_blocks;
    int row = saved ? block * FY_BLOCK_ROWS : block % c.ring_blocks * FY_BLOCK_ROWS;
    fy_save_gate_up(acc, &maps.g[saved], &maps.u[saved], w.column * FY_HALF_N, row, c.limit, buffer, group, thread);
    return !saved;
}

template <bool KEEP>
FY_DEVICE void fy_product_role(const fy_gpu_call &c, uint8_t *shared, int group) {
    fy_block *block = fy_block_of(shared);
    int thread = threadIdx.x & 127, warp = thread / 32, lane = thread & 31;
    uint8_t *buffer = fy_group_buffer(shared, group);
    float acc[128];
    fy_stage stage = {0, 0};
    const fy_operands operands = fy_operands_of(shared, group);
    bool ring_again = c.table.state->macrobatches > 1; /* ring rows are written more than once */
    uint32_t posts = 0;
    for (int number = 0;; number++) {
        if (!fy_barrier_test(&block->full[stage.index], stage.parity)) {
            fy_trace_begin(0, -1);
            fy_barrier_wait(&block->full[stage.index], stage.parity);
            fy_trace_end(0, FY_MARK_OPERANDS);
        }
        const fy_work w = block->work[number % FY_WORKS];
        if (w.kind == FY_END) break;
        if (group * FY_BLOCK_ROWS >= w.rows) {
            fy_pass_stages(block->full, block->empty, stage, group, thread, w.depth);
            continue;
        }
        int2 from = make_int2(-1, 0); /* looked up now, used behind the products */
        if (!fy_is_make(w.kind)) from = fy_push_source(c, fy_is_shared(w.kind), w.row, w.rows, group, warp, lane);
        int rows_of = fy_is_shared(w.kind) ? -1 : w.counter;
        fy_trace_begin(0, rows_of);
        fy_multiply<0, 0>(acc, operands, stage, w.depth, 0, [](int) {});
        fy_trace_next(fy_is_make(w.kind) ? FY_MARK_GATE_UP : FY_MARK_DOWN, rows_of);
        fy_await_taken(block, group, posts);
        if (fy_is_make(w.kind)) {
            if (KEEP && (w.kind == FY_MAKE || c.context_blocks > 0)) {
                bool ringed = fy_keep_gate_up(c, acc, w, buffer, group, thread);
                if (thread == 0 && ringed && ring_again) fy_store_wait_written(); /* made lets the next write there */
                if (thread == 0) fy_store_wait_read<0>();
                fy_group_sync(group + 1);
            }
            fy_stage_h(c, acc, buffer, thread);
        } else {
            fy_push_rows(c, acc, w, buffer + warp * FY_WARP_BYTES, fy_push_target(c, fy_is_shared(w.kind), from), lane);
        }
        fy_trace_end(0, fy_is_make(w.kind) ? FY_MARK_STORE_H : FY_MARK_PUSH);
        fy_post post = {w.kind,
                        w.column,
                        w.load_row + group * FY_BLOCK_ROWS,
                        w.counter + group,
                        w.row + group * FY_BLOCK_ROWS,
                        min(w.rows - group * FY_BLOCK_ROWS, (int)FY_BLOCK_ROWS)};
        fy_post_tile(block, post, group, thread);
        posts++;
    }
    fy_await_taken(block, group, posts);
    fy_post last = {FY_END, 0, 0, 0, 0, 0};
    fy_post_tile(block, last, group, thread);
    if (KEEP && thread == 0) fy_store_wait_written();
}

#endif
