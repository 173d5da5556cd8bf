/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumers of the backward: two warpgroups, each 64 rows x 256 columns of every chosen tile.
 * Reads: stages in shared memory; weight_ring.
 * Writes: what role_grad.cuh, role_push.cuh, role_dx.cuh and role_wgrad.cuh say.
 * Waits on: full[stage], and what role_dx.cuh says, inside the block.
 * Publishes: empty[stage]; remade[block], made[block] with ready[segment]; what role_dx.cuh (sent, arrived) and
 *            role_wgrad.cuh (gathered, turn; READY: written and the caller's ready) say. A signal after stores is held
 *            back until they have had time to drain, and sent early where the block would wait.
 * Registers: 216; 128 hold the accumulators.
 */
#ifndef FERRY_CUDA_ROLE_PRODUCT_BACKWARD_CUH
#define FERRY_CUDA_ROLE_PRODUCT_BACKWARD_CUH

#include "cuda/role_dx.cuh"
#include "cuda/role_wgrad.cuh"
#include "cuda/trace.cuh"

/* Sends what the warp holds back, if anything. READY: the caller wants to know when an expert's gradients are there. */
template <bool READY>
FY_DEVICE void fy_send_backward_signal(const fy_gpu_call &c, const fy_gpu_backward &b, uint8_t *shared) {
    int thread = threadIdx.x & 127;
    fy_backward_signal *held = &fy_backward_block_of(shared)->held[threadIdx.x / 32 - 4];
    const fy_backward_signal s = *held;
    if (s.kind == FY_LAST) return;
    __syncwarp();
    if (thread % 32 == 0) held->kind = FY_LAST;
    int kind = fy_task_plain(s.kind), counter = s.row / FY_BLOCK_ROWS + (fy_task_is_shared(s.kind) ? c.max_blocks : 0);
    if (kind == FY_DX) {
        if (thread < 32) fy_push_signal(c, b.at.arrived, counter, s.row, s.rows, threadIdx.x / 128 - 1, thread);
    } else if (thread == 0) {
        fy_store_wait_written();
        fy_fence_async_global();
        if (READY && kind == FY_WEIGHT) {
            fy_weight_signal(b, s.row);
        } else if (kind == FY_REMAKE) {
            fy_add_release_gpu(&b.table.remade[counter], 1);
        } else {
            fy_fence_gpu();
            fy_add_relaxed_gpu(&c.table.made[counter], 1);
            fy_add_relaxed_gpu(&b.table.ready[fy_task_is_shared(s.kind) ? 0 : b.table.block_segment[counter]], 1);
        }
    }
}

/* What the warp's next fy_send_backward_signal sends. */
FY_DEVICE void fy_hold_back(uint8_t *shared, int kind, int row, int rows) {
    if (threadIdx.x % 32 == 0) {
        fy_backward_signal s = {kind, row, rows};
        fy_backward_block_of(shared)->held[threadIdx.x / 32 - 4] = s;
    }
    __syncwarp();
}

/* `steps` stages of operands into the accumulators; the first one adds to what is there if `add`. */
template <int A_TURNED, int B_TURNED, bool READY>
FY_DEVICE void fy_multiply_task(const fy_gpu_call &c, const fy_gpu_backward &b, float (&acc)[128], uint8_t *shared,
                                const fy_operands &operands, fy_stage &stage, int steps, int add) {
    int send_at = min(2, steps - 1);
    fy_multiply<A_TURNED, B_TURNED>(acc, operands, stage, steps, add, [&](int k) {
        if (k == send_at) fy_send_backward_signal<READY>(c, b, shared);
    });
}

template <bool READY>
FY_DEVICE void fy_product_backward_role(const fy_gpu_call &c, const fy_gpu_backward &b, uint8_t *shared, int group) {
    fy_backward_block *block = fy_backward_block_of(shared);
    int thread = threadIdx.x & 127, warp = thread / 32, lane = thread & 31;
    uint8_t *buffer = fy_group_buffer(shared, group);
    float acc[128];
    fy_stage stage = {0, 0};
    const fy_operands operands = fy_operands_of(shared, group);
    if (lane == 0) block->held[group * 4 + warp].kind = FY_LAST;
    __syncwarp();
    for (;;) {
        if (!fy_barrier_test(&block->full[stage.index], stage.parity)) {
            fy_send_backward_signal<READY>(c, b, shared);
            fy_trace_begin(0, -1);
            fy_barrier_wait(&block->full[stage.index], stage.parity);
            fy_trace_end(0, FY_MARK_OPERANDS);
        }
        const fy_task &t = block->task[block->first[stage.index]];
        if (t.kind == FY_LAST) break;
        int kind = fy_task_plain(t.kind);
        int products = kind == FY_DX ? 2 * t.depth : t.depth;
        if (t.rows <= group * FY_BLOCK_ROWS) {
            fy_pass_stages(block->full, block->empty, stage, group, thread, fy_stages_of(t));
            fy_send_backward_signal<READY>(c, b, shared);
            continue;
        }
        fy_trace_begin(0, fy_rows_of(t));
        /* Each kind has its whole way to itself: joined ones make the compiler move accumulators between products. */
        if (kind == FY_WEIGHT) {
            if (products == 0) {
                fy_pass_stages(block->full, block->empty, stage, group, thread, fy_stages_of(t));
                fy_store_no_weight(c, b, t, buffer, group, thread);
                if (READY) fy_send_backward_signal<READY>(c, b, shared); /* or the next one would take its place */
            } else if (!t.resumes) {
                fy_multiply_task<1, 1, READY>(c, b, acc, shared, operands, stage, products, 0);
                fy_trace_next(FY_MARK_WEIGHT, fy_rows_of(t));
                fy_store_weight(c, b, acc, t, buffer, &block->old[group], group);
            } else {
                fy_resume_sums(b, acc, t, group, thread);
                fy_multiply_task<1, 1, READY>(c, b, acc, shared, operands, stage, products, 1);
                fy_trace_next(FY_MARK_WEIGHT, fy_rows_of(t));
                fy_store_weight(c, b, acc, t, buffer, &block->old[group], group);
            }
            fy_trace_end(0, FY_MARK_STORE_WEIGHT);
            if (READY && b.ready && t.closes && !t.shared) fy_hold_back(shared, t.kind, t.matrix, 0);
            continue;
        }
        if (kind == FY_REMAKE) {
            fy_multiply_task<0, 0, READY>(c, b, acc, shared, operands, stage, products, 0);
            fy_trace_next(FY_MARK_REMAKE, fy_rows_of(t));
            fy_store_gate_up(c, b, acc, t, buffer, group);
        } else if (kind == FY_GRAD) {
            const float *weights = b.table.weight_ring + t.load_row + group * FY_BLOCK_ROWS + warp * 16;
            float weight = t.shared ? 1.0f : __ldcg(weights + (lane & 15));
            fy_multiply_task<0, 1, READY>(c, b, acc, shared, operands, stage, products, 0);
            fy_trace_next(FY_MARK_GRAD, fy_rows_of(t));
            if (c.limit < FY_NO_LIMIT)
                fy_store_gradient<true>(c, b, acc, t, shared, stage, group, weight);
            else
                fy_store_gradient<false>(c, b, acc, t, shared, stage, group, weight);
        } else {
            int2 from = fy_push_source(c, t.shared, t.row, t.rows, group, warp, lane);
            fy_multiply_task<0, 1, READY>(c, b, acc, shared, operands, stage, products, 0);
            fy_trace_next(FY_MARK_DX, fy_rows_of(t));
            /* The buffer may still be read by the copy engine from another kind of tile. */
            if (thread == 0) fy_store_wait_read<0>();
            fy_group_sync(group + 1);
            fy_work w;
            w.column = t.column;
            int again = fy_thread_again() & 127;
            uint16_t *target = fy_push_target(c, t.shared, from);
            fy_push_rows(c, acc, w, buffer + again / 32 * FY_WARP_BYTES, target, again & 31);
            if (t.column == 0 && !t.shared) fy_push_dweights(c, b, t, group, warp, lane);
            fy_push_done(group, warp);
        }
        int stored = kind == FY_REMAKE ? FY_MARK_STORE_G_U : kind == FY_GRAD ? FY_MARK_STORE_GRAD : FY_MARK_PUSH;
        fy_trace_end(0, stored);
        if (lane == 0) {
            fy_backward_signal s = {t.kind, t.row + group * FY_BLOCK_ROWS,
                                    min(t.rows - group * FY_BLOCK_ROWS, (int)FY_BLOCK_ROWS)};
            block->held[group * 4 + warp] = s;
        }
        __syncwarp();
    }
    fy_send_backward_signal<READY>(c, b, shared);
    if (thread == 0) fy_store_wait_written();
}

#endif
