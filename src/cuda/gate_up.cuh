/* SPDX-License-Identifier: Apache-2.0 */
/*
 * g and u as they are saved: unclamped, BF16, on the same side of every bound as the sums that they come from. A
 * warpgroup's 64 rows x (128 + 128) columns leave in four pieces of 64 columns, which the copy engine writes while the
 * consumers go on.
 */
#ifndef FERRY_CUDA_GATE_UP_CUH
#define FERRY_CUDA_GATE_UP_CUH

#include "cuda/block.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/prim_matrix.cuh"
#include "rules/swiglu.h"

/* The byte of column group `chunk` (8 columns) of row `row` in a swizzled box. */
FY_DEVICE uint32_t fy_box_at(int row, int chunk) { return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4)); }

/* `limit`: 3e38 and more are none. `column`, `row`: where they go in both maps. */
FY_DEVICE void fy_save_gate_up(const float (&acc)[128], const CUtensorMap *g, const CUtensorMap *u, int column, int row,
                               float limit, uint8_t *buffer, int group, int thread) {
    int lane = thread & 31, r = (thread / 32) * 16 + (lane & 15);
    if (limit >= 3e38f) limit = fy_swiglu_limit(0.0f);
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        uint8_t *to = buffer + piece % 2 * FY_PIECE_BYTES;
        if (thread == 0) fy_store_wait_read<1>();
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float low = acc[piece * 32 + j * 8 + 2 * i], high = acc[piece * 32 + j * 8 + 2 * i + 1];
                uint32_t l = piece < 2 ? fy_save_gate(low, limit) : fy_save_up(low, limit);
                uint32_t h = piece < 2 ? fy_save_gate(high, limit) : fy_save_up(high, limit);
                v[i] = l | h << 16;
            }
            fy_store_matrices(fy_shared_address(to) + fy_box_at(r, j * 2 + (lane >> 4)), v[0], v[1], v[2], v[3]);
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        if (thread == 0) {
            fy_store_box2(piece < 2 ? g : u, to, column + piece % 2 * 64, row);
            fy_store_commit();
        }
    }
}

#endif
