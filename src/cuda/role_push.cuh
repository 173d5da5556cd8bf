/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The push of result rows: the end of a "finish" tile in the consumers. Every warp rounds its 16 rows, stages 128
 * columns at a time, and stores 16 bytes a lane, two rows of 256 bytes at a time, to the owners' slots.
 * Reads: accumulators, source[row].  Writes: y slots of the owners (own or peer memory); the shared expert's rows.
 * Waits on: nothing.
 * Publishes: nothing; sent[block] and arrived[token] follow: in the forward by the choosing warp (role_signal.cuh),
 *            in the backward by the warpgroup's first one (role_dx.cuh).
 * Registers: within the consumers' 192 (backward: 216), beside 128 accumulators.
 */
#ifndef FERRY_CUDA_ROLE_PUSH_CUH
#define FERRY_CUDA_ROLE_PUSH_CUH

#include "cuda/block.cuh"
#include "cuda/prim_matrix.cuh"
#include "cuda/wait.cuh"

/*
 * Whose row `lane` (of 16) of a warp is, of a tile whose `rows` rows begin at `row`: rank and slot; `shared`: of the
 * shared expert, this rank and the token. Rank -1: a padding row.
 */
FY_DEVICE int2 fy_push_source(const fy_gpu_call &c, bool shared, int row, int rows, int group, int warp, int lane) {
    int r = group * FY_BLOCK_ROWS + warp * 16 + (lane & 15);
    int2 from = make_int2(-1, row + r);
    if (r < rows) from = shared ? make_int2(c.rank, row + r) : *(const int2 *)&c.table.source[row + r];
    return from;
}

/* Where that row goes; NULL: nowhere. */
FY_DEVICE uint16_t *fy_push_target(const fy_gpu_call &c, bool shared, int2 from) {
    if (from.x < 0) return nullptr;
    uint16_t *y = shared ? c.table.shared_y : (uint16_t *)(c.peer[from.x] + c.at.y);
    return y + (int64_t)from.y * c.hidden;
}

FY_DEVICE void fy_push_rows(const fy_gpu_call &c, const float (&acc)[128], const fy_work &w, uint8_t *buffer,
                            uint16_t *target, int lane) {
    uint32_t to = fy_shared_address(buffer);
    uint64_t address = (uint64_t)target;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int column = w.column * FY_TILE_N + half * 128 + (lane & 15) * 8;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int f = half * 64 + j * 8;
            fy_store_matrices(to + (lane & 15) * FY_ROW_PITCH + (j * 16 + (lane >> 4) * 8) * 2,
                              fy_pack(acc[f], acc[f + 1]), fy_pack(acc[f + 2], acc[f + 3]),
                              fy_pack(acc[f + 4], acc[f + 5]), fy_pack(acc[f + 6], acc[f + 7]));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int r = i * 2 + (lane >> 4);
            uint16_t *row = (uint16_t *)__shfl_sync(0xffffffffu, address, r);
            uint4 v = *(const uint4 *)(buffer + r * FY_ROW_PITCH + (lane & 15) * 16);
            if (row && column < c.hidden) __stcg((uint4 *)(row + column), v);
        }
        __syncwarp();
    }
}

/*
 * A warp: adds 1 to arrived[token], at the owner, of each of the `rows` rows from `row` on of block `counter`.
 * `arrived`: where those counters are. The caller has fenced.
 */
FY_DEVICE void fy_tell_owners(const fy_gpu_call &c, uint64_t arrived, int counter, int row, int rows, int lane) {
#pragma unroll 1
    for (int r = lane; r < rows; r += 32) {
        int rank = c.rank, token = row + r;
        if (counter < c.max_blocks) {
            int2 from = *(const int2 *)&c.table.source[row + r];
            rank = from.x;
            token = from.y / c.slots;
        }
        fy_add_relaxed_sys((uint32_t *)(c.peer[rank] + arrived) + token, 1);
    }
}

#endif
