/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a weight-gradient tile: 64 rows x 256 columns of dWg, dWu or dWd in a warpgroup's accumulators go to the
 * caller's tensor, or, where a macrobatch end cuts the expert, to the table of open sums, from which the next segment
 * of the expert goes on.
 * Reads: accumulators; open sums; a BF16 gradient that is added to.  Writes: the caller's gradient, or open sums.
 * Waits on: old: its own loads.
 * Publishes: gathered[segment] and turn[tile], once for each warpgroup: rows and open sums are read, open sums stored;
 *            where the caller wants to know, written[expert] when a tile's stores are complete, and with the last one
 *            the caller's ready[expert].
 * Registers: within the consumers' 216, beside 128 accumulators.
 */
#ifndef FERRY_CUDA_ROLE_WGRAD_CUH
#define FERRY_CUDA_ROLE_WGRAD_CUH

#include "cuda/role_grad.cuh"

/* The open sums of a tile, in the order of the accumulators: 16 bytes of a thread beside those of the next. */
FY_DEVICE float4 *fy_open_sums(const fy_gpu_backward &b, const fy_task &t, int group, int thread) {
    return (float4 *)(b.table.open + ((int64_t)t.open * 2 + group) * 128 * 128) + thread;
}

FY_DEVICE void fy_resume_sums(const fy_gpu_backward &b, float (&acc)[128], const fy_task &t, int group, int thread) {
    const float4 *from = fy_open_sums(b, t, group, thread);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float4 v = __ldcg(from + i * 128);
        acc[4 * i] = v.x;
        acc[4 * i + 1] = v.y;
        acc[4 * i + 2] = v.z;
        acc[4 * i + 3] = v.w;
    }
}

FY_DEVICE void fy_keep_sums(const fy_gpu_backward &b, const float (&acc)[128], const fy_task &t, int group,
                            int thread) {
    float4 *to = fy_open_sums(b, t, group, thread);
#pragma unroll
    for (int i = 0; i < 32; i++)
        __stcg(to + i * 128, make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
}

/* Where a tile of a weight gradient goes, uniform. */
typedef struct fy_place {
    const CUtensorMap *map;
    int column, row, matrix;
    bool add; /* to what is there */
} fy_place;

FY_DEVICE fy_place fy_place_of(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t, int group) {
    bool table = t.to & FY_TO_TABLE;
    const CUtensorMap *map = table ? b.table.to_map + t.which * c.local_experts + t.matrix
                                   : (t.shared ? b.shared_expert.to : b.routed.to) + t.which;
    fy_place place = {fy_uniform(map), fy_uniform(t.column * FY_TILE_N),
                      fy_uniform(t.m * FY_TILE_M + group * FY_BLOCK_ROWS), fy_uniform(table ? 0 : t.matrix),
                      (t.to & FY_TO_ADD) != 0};
    if (table) fy_fence_map(place.map);
    return place;
}

/* Eight pieces of 32 columns, two at a time. */
FY_DEVICE void fy_store_gradient_f32(const float (&acc)[128], const fy_place &to, uint8_t *buffer, int group,
                                     int thread) {
    uint32_t from = fy_uniform(fy_shared_address(buffer));
    int lane = thread & 31, r = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        if (thread == 0) fy_store_wait_read<0>();
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint8_t *piece = buffer + j / 4 * FY_PIECE_BYTES;
            int f = pair * 32 + j * 4, chunk = j % 4 * 2 + ((lane & 3) >> 1);
            *(float2 *)(piece + fy_box_at(r, chunk) + (lane & 1) * 8) = make_float2(acc[f], acc[f + 1]);
            *(float2 *)(piece + fy_box_at(r + 8, chunk) + (lane & 1) * 8) = make_float2(acc[f + 2], acc[f + 3]);
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        if (thread == 0) {
            for (int i = 0; i < 2; i++) {
                int column = to.column + (2 * pair + i) * 32;
                if (to.add)
                    fy_add_box3(to.map, from + i * FY_PIECE_BYTES, column, to.row, to.matrix);
                else
                    fy_store_box3(to.map, from + i * FY_PIECE_BYTES, column, to.row, to.matrix);
            }
            fy_store_commit();
        }
    }
}

/* Four pieces of 64 columns, two at a time; what is added to comes in through the same pieces first. */
FY_DEVICE void fy_store_gradient_bf16(const float (&acc)[128], const fy_place &to, uint8_t *buffer, uint64_t *old,
                                      int group, int thread) {
    uint32_t from = fy_uniform(fy_shared_address(buffer));
    bool add = to.add;
    int lane = thread & 31, r = thread / 32 * 16 + (lane & 15);
    /* Nobody still reads the buffer for another kind of tile. */
    if (add) fy_group_sync(group + 1);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        if (thread == 0) {
            fy_store_wait_read<0>();
            if (add) {
                fy_barrier_arrive_expecting(old, 2 * FY_PIECE_BYTES);
                for (int i = 0; i < 2; i++)
                    fy_load_box3(buffer + i * FY_PIECE_BYTES, to.map, old, to.column + (2 * pair + i) * 64, to.row,
                                 to.matrix);
            }
        }
        if (add) fy_barrier_wait(old, pair);
        fy_group_sync(group + 1);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t at = fy_piece_at(buffer, j, r, lane), v[4];
            int f = pair * 64 + j * 8;
            if (add) {
                fy_load_matrices(v, at);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] = fy_pack(__fadd_rn(fy_low_half(v[i]), acc[f + 2 * i]),
                                   __fadd_rn(fy_high_half(v[i]), acc[f + 2 * i + 1]));
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = fy_pack(acc[f + 2 * i], acc[f + 2 * i + 1]);
            }
            fy_store_matrices(at, v[0], v[1], v[2], v[3]);
        }
        fy_fence_async_shared();
        fy_group_sync(group + 1);
        if (thread == 0) {
            for (int i = 0; i < 2; i++)
                fy_store_box3(to.map, from + i * FY_PIECE_BYTES, to.column + (2 * pair + i) * 64, to.row, to.matrix);
            fy_store_commit();
        }
    }
}

FY_DEVICE void fy_store_weight(const fy_gpu_call &c, const fy_gpu_backward &b, const float (&acc)[128],
                               const fy_task &t, uint8_t *buffer, uint64_t *old, int group) {
    int thread = fy_thread_again() & 127;
    if (!t.closes) {
        fy_keep_sums(b, acc, t, group, thread);
    } else {
        const fy_place to = fy_place_of(c, b, t, group);
        if (t.to & FY_TO_F32)
            fy_store_gradient_f32(acc, to, buffer, group, thread);
        else
            fy_store_gradient_bf16(acc, to, buffer, old, group, thread);
    }
    if (t.resumes || !t.closes) fy_group_sync(group + 1);
    if (thread == 0) {
        if (t.resumes || !t.closes) fy_add_release_gpu(&b.table.turn[t.open], 1);
        /* What it read is in; a release would wait here for the stores of the whole multiprocessor. */
        fy_add_relaxed_gpu(&b.table.gathered[t.segment], 1);
    }
}

/* A warpgroup's stores to a gradient of `expert` are complete: whoever completes the expert tells the caller. */
FY_DEVICE void fy_weight_signal(const fy_gpu_backward &b, int expert) {
    uint32_t all = 2 * (uint32_t)b.weight_tickets[0];
    if (fy_fetch_add_acq_rel_gpu(&b.table.written[expert], 1) + 1 != all) return;
    fy_fence_sys();
    fy_store_release_sys(b.ready + expert, b.ready_value);
}

/* The gradient of an expert without rows: zeros, or what is there. */
FY_DEVICE void fy_store_no_weight(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t, uint8_t *buffer,
                                  int group, int thread) {
    if (t.to & FY_TO_ADD) return;
    const fy_place to = fy_place_of(c, b, t, group);
    uint32_t from = fy_uniform(fy_shared_address(buffer));
    if (thread == 0) fy_store_wait_read<0>();
    fy_group_sync(group + 1);
    for (int i = thread; i < FY_PIECE_BYTES / 16; i += 128) ((uint4 *)buffer)[i] = make_uint4(0, 0, 0, 0);
    fy_fence_async_shared();
    fy_group_sync(group + 1);
    if (thread != 0) return;
    for (int i = 0; i < FY_TILE_N; i += t.to & FY_TO_F32 ? 32 : 64)
        fy_store_box3(to.map, from, to.column + i, to.row, to.matrix);
    fy_store_commit();
}

#endif
