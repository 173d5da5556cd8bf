/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumers: two warpgroups, each 64 rows x 256 columns of every tile that the loading thread describes.
 * Reads: stages in shared memory.  Writes: h (make tiles, SwiGLU applied, by the copy engine), y (finish tiles,
 *        role_push.cuh).
 * Waits on: full[stage], and what role_push.cuh says, inside the block.
 * Publishes: empty[stage]; made[block] when a column tile of h is written, sent[block] for y. A signal is held back
 *            until the stores before it have had time to drain, and sent early where the block would wait.
 * Registers: 208; 128 hold the accumulators.
 */
#ifndef FERRY_CUDA_ROLE_PRODUCT_CUH
#define FERRY_CUDA_ROLE_PRODUCT_CUH

#include "cuda/gate_up.cuh"
#include "cuda/multiply.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/role_push.cuh"
#include "cuda/swiglu.cuh"
#include "cuda/trace.cuh"

/* A signal held back. kind FY_END: none. */
typedef struct fy_signal {
    int kind, counter, row, rows;
} fy_signal;

FY_DEVICE void fy_send_signal(const fy_gpu_call &c, fy_signal &s, int group, int thread) {
    if (fy_is_make(s.kind)) {
        if (thread == 0) {
            fy_store_wait_written();
            fy_fence_async_global();
            fy_add_release_gpu(&c.table.made[s.counter], 1);
        }
    } else if (thread < 32) {
        fy_push_signal(c, c.at.arrived, s.counter, s.row, s.rows, group, thread);
    }
    s.kind = FY_END;
}

/* h of 64 rows x 128 columns, in two pieces of 64 columns that the copy engine writes while the next tile runs. */
FY_DEVICE void fy_store_h(const fy_gpu_call &c, float (&acc)[128], const fy_work &w, uint8_t *buffer, int group,
                          int thread) {
    const CUtensorMap *map = w.kind == FY_MAKE ? &c.routed.h_short : &c.shared_expert.h_short;
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
    if (thread == 0) fy_store_wait_read<0>();
    fy_group_sync(group + 1);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int f = j * 8;
        fy_store_matrices(fy_piece_at(buffer, j, row, lane), fy_pack(acc[f], acc[f + 1]),
                          fy_pack(acc[f + 2], acc[f + 3]), fy_pack(acc[f + 4], acc[f + 5]),
                          fy_pack(acc[f + 6], acc[f + 7]));
    }
    fy_fence_async_shared();
    fy_group_sync(group + 1);
    fy_store_pieces(map, buffer, w.column * FY_HALF_N, w.load_row + group * FY_BLOCK_ROWS, thread);
}

/* g and u for the backward: in the context, or in the ring, whose last macrobatch of the walk a backward takes first.
 */
FY_DEVICE void fy_keep_gate_up(const fy_gpu_call &c, const float (&acc)[128], const fy_work &w, uint8_t *buffer,
                               int group, int thread) {
    bool shared = w.kind == FY_SHARED_MAKE;
    const fy_gpu_keep_maps &maps = shared ? c.keep_shared : c.keep;
    int block = w.row / FY_BLOCK_ROWS + group, saved = shared || block < c.context_blocks;
    int row = saved ? block * FY_BLOCK_ROWS : block % c.ring_blocks * FY_BLOCK_ROWS;
    fy_save_gate_up(acc, &maps.g[saved], &maps.u[saved], w.column * FY_HALF_N, row, c.limit, buffer, group, thread);
}

template <bool KEEP>
FY_DEVICE void fy_product_role(const fy_gpu_call &c, uint8_t *shared, int group) {
    fy_block *block = fy_block_of(shared);
    int thread = threadIdx.x & 127, warp = thread / 32, lane = thread & 31;
    uint8_t *buffer = fy_group_buffer(shared, group);
    float acc[128];
    fy_stage stage = {0, 0};
    const fy_operands operands = fy_operands_of(shared, group);
    fy_signal held;
    held.kind = FY_END;
    for (int number = 0;; number++) {
        if (!fy_barrier_test(&block->full[stage.index], stage.parity)) {
            if (held.kind != FY_END) fy_send_signal(c, held, group, thread);
            fy_trace_begin(0, -1);
            fy_barrier_wait(&block->full[stage.index], stage.parity);
            fy_trace_end(0, FY_MARK_OPERANDS);
        }
        const fy_work w = block->work[number % FY_WORKS];
        if (w.kind == FY_END) break;
        bool active = group * FY_BLOCK_ROWS < w.rows;
        if (!active) {
            fy_pass_stages(block->full, block->empty, stage, group, thread, w.depth);
            if (held.kind != FY_END) fy_send_signal(c, held, group, thread);
            continue;
        }
        int2 from = make_int2(-1, 0); /* looked up now, used behind the products */
        if (!fy_is_make(w.kind)) from = fy_push_source(c, fy_is_shared(w.kind), w.row, w.rows, group, warp, lane);
        int send_at = held.kind == FY_END ? -1 : min(2, w.depth - 1), rows_of = fy_is_shared(w.kind) ? -1 : w.counter;
        fy_trace_begin(0, rows_of);
        fy_multiply<0, 0>(acc, operands, stage, w.depth, 0, [&](int k) {
            if (k == send_at) fy_send_signal(c, held, group, thread);
        });
        fy_trace_next(fy_is_make(w.kind) ? FY_MARK_GATE_UP : FY_MARK_DOWN, rows_of);
        if (fy_is_make(w.kind)) {
            if (KEEP && (w.kind == FY_MAKE || c.context_blocks > 0)) fy_keep_gate_up(c, acc, w, buffer, group, thread);
            fy_store_h(c, acc, w, buffer, group, thread);
        } else {
            /* The buffer may still be read by the copy engine from a tile of h. */
            if (thread == 0) fy_store_wait_read<0>();
            fy_group_sync(group + 1);
            fy_push_rows(c, acc, w, buffer + warp * FY_WARP_BYTES, fy_push_target(c, fy_is_shared(w.kind), from), lane);
            fy_push_done(group, warp);
        }
        fy_trace_end(0, fy_is_make(w.kind) ? FY_MARK_STORE_H : FY_MARK_PUSH);
        held.kind = w.kind;
        held.counter = w.counter + group;
        held.row = w.row + group * FY_BLOCK_ROWS;
        held.rows = min(w.rows - group * FY_BLOCK_ROWS, (int)FY_BLOCK_ROWS);
    }
    if (held.kind != FY_END) fy_send_signal(c, held, group, thread);
    if (thread == 0) fy_store_wait_written();
}

#endif
