/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of the tiles that make rows of I columns: g and u again (REMAKE), and the SwiGLU gradient (GRAD) of a tile of
 * dh that is in the accumulators.
 * Reads: accumulators; g and u of the tile, which follow its operands through the stages; weight of each row.
 * Writes: g, u; dg, du, w h' (zeros in rows behind the expert's last, up to a whole block); parts_ring: the sum of
 *         dh h' over the tile's columns, each row in one order: a lane's columns ascending, then lanes by pairs.
 * Waits on: full[stage].
 * Publishes: empty[stage], once the copy engine has read the results, which lie where g and u were.
 * Registers: within the consumers' 216, beside 128 accumulators.
 */
#ifndef FERRY_CUDA_ROLE_GRAD_CUH
#define FERRY_CUDA_ROLE_GRAD_CUH

#include "cuda/block_backward.cuh"
#include "cuda/gate_up.cuh"
#include "cuda/multiply.cuh"
#include "cuda/prim_gradient.cuh"
#include "cuda/prim_matrix.cuh"

/* g and u of a REMAKE tile go to where the context or the ring has them. */
FY_DEVICE void fy_store_gate_up(const fy_gpu_call &c, const fy_gpu_backward &b, const float (&acc)[128],
                                const fy_task &t, uint8_t *buffer, int group) {
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    int block = t.row / FY_BLOCK_ROWS + group, saved = !t.shared && fy_is_saved(b, block);
    int row = t.shared || saved ? block * FY_BLOCK_ROWS : t.load_row + group * FY_BLOCK_ROWS;
    fy_save_gate_up(acc, &maps.g[saved], &maps.u[saved], t.column * FY_HALF_N, row, c.limit, buffer, group,
                    fy_thread_again() & 127);
}

/* `value`, or +0 where `room` is negative; neither of -0 and NaN is. */
FY_DEVICE float fy_unless_negative(float value, float room) {
    return __uint_as_float(__float_as_uint(value) & ~(uint32_t)(__float_as_int(room) >> 31));
}

/*
 * fy_swiglu_grad with the chip's own exponential and reciprocal, and no choices: predicates are as short as registers
 * here. `dh` comes without the slot's weight. CLAMPED: there is a limit.
 */
template <bool CLAMPED>
FY_DEVICE fy_swiglu_gradient fy_gradient_of(float g, float u, float dh, float weight, float limit) {
    float gate = CLAMPED ? fy_chip_min(g, limit) : g, up = CLAMPED ? fy_chip_max(fy_chip_min(u, limit), -limit) : u;
    /* exp of a large -g is Inf and s is 0; 1 - s loses digits only where its product with g adds to 1. */
    float s = fy_chip_reciprocal(__fadd_rn(1.0f, fy_chip_exp2(__fmul_rn(gate, -1.44269504f))));
    float silu = __fmul_rn(gate, s);
    float slope = __fmul_rn(s, __fmaf_rn(gate, __fadd_rn(1.0f, -s), 1.0f));
    float weighted = __fmul_rn(weight, dh);
    fy_swiglu_gradient r;
    r.h = __fmul_rn(silu, up);
    r.dg = __fmul_rn(__fmul_rn(weighted, up), slope);
    r.du = __fmul_rn(weighted, silu);
    if (CLAMPED) { /* the bounds themselves leave room 0 */
        r.dg = fy_unless_negative(r.dg, __fadd_rn(limit, -g));
        r.du = fy_unless_negative(fy_unless_negative(r.du, __fadd_rn(limit, -u)), __fadd_rn(limit, u));
    }
    return r;
}

FY_DEVICE float fy_low_half(uint32_t v) { return __uint_as_float(v << 16); }

FY_DEVICE float fy_high_half(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }

/* `row_weight`: of row `lane` of the warp's 16. */
template <bool CLAMPED>
FY_DEVICE void fy_store_gradient(const fy_gpu_call &c, const fy_gpu_backward &b, const float (&acc)[128],
                                 const fy_task &t, uint8_t *shared, fy_stage &stage, int group, float row_weight) {
    const fy_gpu_backward_maps &maps = t.shared ? b.shared_expert : b.routed;
    fy_backward_block *block = fy_backward_block_of(shared);
    int thread = fy_thread_again() & 127, lane = thread & 31, warp_row = thread / 32 * 16, row = warp_row + (lane & 15);
    /* Masks: zeros behind the expert's last row, whatever the products are there. */
    int behind = group * FY_BLOCK_ROWS + warp_row + lane / 4 - t.rows;
    uint32_t live[2] = {(uint32_t)(behind >> 31), (uint32_t)((behind + 8) >> 31)};
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < FY_GRAD_STEPS; s++) {
        fy_barrier_wait(&block->full[stage.index], stage.parity);
        uint32_t g_at = fy_shared_address(fy_stage_a(shared, stage.index) + group * FY_BOX_BYTES),
                 u_at = g_at + 2 * FY_BOX_BYTES, wh_at = g_at + 4 * FY_BOX_BYTES;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t at = fy_box_at(row, j * 2 + (lane >> 4)), g[4], u[4], dg[4], du[4], wh[4];
            const float weight[2] = {__shfl_sync(0xffffffffu, row_weight, lane / 4),
                                     __shfl_sync(0xffffffffu, row_weight, lane / 4 + 8)};
            fy_load_matrices(g, g_at + at);
            fy_load_matrices(u, u_at + at);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* rows lane / 4 and + 8 alternate */
                float low = acc[s * 32 + j * 8 + 2 * i], high = acc[s * 32 + j * 8 + 2 * i + 1];
                fy_swiglu_gradient a =
                    fy_gradient_of<CLAMPED>(fy_low_half(g[i]), fy_low_half(u[i]), low, weight[i & 1], c.limit);
                fy_swiglu_gradient z =
                    fy_gradient_of<CLAMPED>(fy_high_half(g[i]), fy_high_half(u[i]), high, weight[i & 1], c.limit);
                sum[i & 1] = __fmaf_rn(low, a.h, sum[i & 1]);
                sum[i & 1] = __fmaf_rn(high, z.h, sum[i & 1]);
                dg[i] = live[i & 1] & fy_pack(a.dg, z.dg);
                du[i] = live[i & 1] & fy_pack(a.du, z.du);
                wh[i] = live[i & 1] & fy_pack(__fmul_rn(weight[i & 1], a.h), __fmul_rn(weight[i & 1], z.h));
            }
            /* Each warp writes where it alone has read. */
            fy_store_matrices(g_at + at, dg[0], dg[1], dg[2], dg[3]);
            fy_store_matrices(u_at + at, du[0], du[1], du[2], du[3]);
            fy_store_matrices(wh_at + at, wh[0], wh[1], wh[2], wh[3]);
        }
        if (s == FY_GRAD_STEPS - 1 && !t.shared) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
                sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
                int again = fy_thread_again() - 128, r = again / 32 * 16 + again % 32 / 4 + 8 * i;
                int64_t parts = fy_parts(c.intermediate, FY_TILE_N);
                if (live[i] && lane % 4 == 0) b.table.parts_ring[(t.load_row + r) * parts + t.column] = sum[i];
            }
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        const fy_gpu_backward_maps *to = fy_uniform(&maps);
        uint32_t from = fy_uniform(g_at);
        int column = fy_uniform(t.column * FY_TILE_N + s * 64);
        int to_row = fy_uniform(t.load_row + group * FY_BLOCK_ROWS);
        if (thread == 0) {
            fy_store_box2(&to->dg, from, column, to_row);
            fy_store_box2(&to->du, from + 2 * FY_BOX_BYTES, column, to_row);
            fy_store_box2(&to->wh, from + 4 * FY_BOX_BYTES, column, to_row);
            fy_store_commit();
            if (s > 0) {
                fy_store_wait_read<1>();
                fy_barrier_arrive(&block->empty[fy_stage_before(stage)]);
            }
        }
        fy_next_stage(stage);
    }
    if (thread == 0) {
        fy_store_wait_read<0>();
        fy_barrier_arrive(&block->empty[fy_stage_before(stage)]);
    }
}

#endif
