/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of every product: a warpgroup takes stages of operands as they fill, multiplies 64 rows x 256 columns and
 * gives the stages back. Four products take 1,024 clocks for the two warpgroups together; what the loop executes beside
 * them costs power, of which the chip has no more to give, so operands are told once a warp, in scalar registers.
 */
#ifndef FERRY_CUDA_MULTIPLY_CUH
#define FERRY_CUDA_MULTIPLY_CUH

#include "cuda/block.cuh"
#include "cuda/prim_wgmma.cuh"

/* A warpgroup's operands in stage 0, the same in all lanes. */
typedef struct fy_operands {
    uint32_t a, b;
} fy_operands;

FY_DEVICE fy_operands fy_operands_of(uint8_t *shared, int group) {
    fy_operands o = {fy_uniform(fy_operand(fy_stage_a(shared, 0) + group * FY_BOX_BYTES)),
                     fy_uniform(fy_operand(fy_stage_b(shared, 0)))};
    return o;
}

/*
 * `steps` (>= 1) stages into the accumulators; the first one adds to what is there if `add`. `between` (k) runs while
 * step k's products do.
 */
template <int A_TURNED, int B_TURNED, class BETWEEN>
FY_DEVICE void fy_multiply(float (&acc)[128], const fy_operands &operands, fy_stage &stage, int steps, int add,
                           BETWEEN between) {
    const int a_step = A_TURNED ? FY_TURNED_STEP : FY_STRAIGHT_STEP,
              b_step = B_TURNED ? FY_TURNED_STEP : FY_STRAIGHT_STEP;
    /* From an operand, for that is in a register anyway. */
    uint32_t full = fy_address_of(operands.b) - FY_A_BYTES + FY_BLOCK_AT, empty = full + FY_STAGES * 8;
    bool tells = (threadIdx.x & 127) == 0;
    int last = -1;
    for (int k = 0; k < steps; k++) {
        fy_barrier_wait_at(full + stage.index * 8, stage.parity);
        uint32_t at = fy_uniform((uint32_t)stage.index) * (FY_STAGE_BYTES / 16);
        uint64_t a = fy_descriptor<A_TURNED>(operands.a + at), b = fy_descriptor<B_TURNED>(operands.b + at);
        fy_product_begin();
#pragma unroll
        for (int part = 0; part < FY_TILE_K / 16; part++)
            fy_product_step<A_TURNED, B_TURNED>(acc, a + part * a_step, b + part * b_step, (k | part | add) != 0);
        fy_product_commit();
        between(k);
        if (last >= 0) {
            fy_product_wait<1>();
            if (tells) fy_barrier_arrive_at(empty + last * 8);
        }
        last = stage.index;
        fy_next_stage(stage);
    }
    fy_product_wait<0>();
    if (tells) fy_barrier_arrive_at(empty + last * 8);
}

/* Stages that this warpgroup has no part in. */
FY_DEVICE void fy_pass_stages(uint64_t *full, uint64_t *empty, fy_stage &stage, int group, int thread, int steps) {
    for (int k = 0; k < steps; k++) {
        fy_barrier_wait(&full[stage.index], stage.parity);
        /* No product keeps the four warps together here: one that stays behind would miss a phase. */
        fy_group_sync(group + 1);
        if (thread == 0) fy_barrier_arrive(&empty[stage.index]);
        fy_next_stage(stage);
    }
}

#endif
