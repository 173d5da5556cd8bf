/* SPDX-License-Identifier: Apache-2.0 */
/*
 * g and u as they are saved: unclamped, BF16, on the same side of every bound as the sums that they come from. A
 * warpgroup's 64 rows x (128 + 128) columns leave in four pieces of 64 columns, two at a time, which the copy engine
 * writes while the consumers go on.
 */
#ifndef FERRY_CUDA_GATE_UP_CUH
#define FERRY_CUDA_GATE_UP_CUH

#include "cuda/block.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/prim_matrix.cuh"
#include "rules/swiglu.h"

/* Two neighbours of a piece. Without a limit they are only rounded: choosing a side takes more time than all the rest.
 */
template <bool CLAMPED>
FY_DEVICE uint32_t fy_saved_pair(bool gate, float low, float high, float limit) {
    if (!CLAMPED) return fy_pack(low, high);
    return gate ? fy_save_gate(low, limit) | (uint32_t)fy_save_gate(high, limit) << 16
                : fy_save_up(low, limit) | (uint32_t)fy_save_up(high, limit) << 16;
}

/* Where a lane's part of columns 16 j .. of row r goes in two pieces of 64 columns. */
FY_DEVICE uint32_t fy_piece_at(const uint8_t *buffer, int j, int r, int lane) {
    return fy_shared_address(buffer) + j / 4 * FY_PIECE_BYTES + fy_box_at(r, j % 4 * 2 + (lane >> 4));
}

/* By one thread, once all have written them. */
FY_DEVICE void fy_store_pieces(const CUtensorMap *map, uint32_t from, int column, int row) {
    for (int piece = 0; piece < 2; piece++) fy_store_box2(map, from + piece * FY_PIECE_BYTES, column + piece * 64, row);
    fy_store_commit();
}

template <bool CLAMPED>
FY_DEVICE void fy_save_pieces(const float (&acc)[128], const CUtensorMap *g, const CUtensorMap *u, int column, int row,
                              float limit, uint8_t *buffer, int group, int thread) {
    int lane = thread & 31, r = (thread / 32) * 16 + (lane & 15);
    uint32_t from = fy_uniform(fy_shared_address(buffer));
    g = fy_uniform(g), u = fy_uniform(u), column = fy_uniform(column), row = fy_uniform(row);
#pragma unroll
    for (int up = 0; up < 2; up++) {
        if (thread == 0) fy_store_wait_read<0>();
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int f = up * 64 + j * 8 + 2 * i;
                v[i] = fy_saved_pair<CLAMPED>(up == 0, acc[f], acc[f + 1], limit);
            }
            fy_store_matrices(fy_piece_at(buffer, j, r, lane), v[0], v[1], v[2], v[3]);
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        if (thread == 0) fy_store_pieces(up ? u : g, from, column, row);
    }
}

/* `column`, `row`: where they go in both maps. */
FY_DEVICE void fy_save_gate_up(const float (&acc)[128], const CUtensorMap *g, const CUtensorMap *u, int column, int row,
                               float limit, uint8_t *buffer, int group, int thread) {
    if (limit < FY_NO_LIMIT)
        fy_save_pieces<true>(acc, g, u, column, row, limit, buffer, group, thread);
    else
        fy_save_pieces<false>(acc, g, u, column, row, limit, buffer, group, thread);
}

#endif
