/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pull of token rows: warps take tickets of FY_PULL_ROWS rows in walk order and copy tokens from their owners'
 * staged memory into the x ring. A token that several rows of one macrobatch want is read once, by the ticket of its
 * first row there, and stored to all of them (fan-out). The rows at the head of the walk are an exception: they are
 * brought each for itself, the first ones by all warps but those that feed products or choose tiles, so that products
 * begin as soon as they can. Padding rows become zeros.
 * Reads: tile table, source[row], slot_row, staged x of all ranks (or the caller's x).
 * Writes: x ring; with a context the rows that it saves there.
 * Waits on: made[block of the macrobatch before] (its products have read the ring rows that are overwritten); never for
 *           the head.
 * Publishes: pulled[block], rows, padding included; all rows of a ticket behind one fence, since each waits for stores.
 *            To the host, how many rows were pulled.
 * Registers: the producer warpgroup's 120: twice eight 16-byte loads in flight.
 */
#ifndef FERRY_CUDA_ROLE_PULL_CUH
#define FERRY_CUDA_ROLE_PULL_CUH

#include "cuda/pulled.cuh"
#include "cuda/trace.cuh"

/* The ring row of a padded row is free once the macrobatch walked before has read it. */
FY_DEVICE bool fy_wait_for_ring(const fy_gpu_call &c, int row) {
    int before = row / FY_BLOCK_ROWS + c.ring_blocks;
    if (before >= c.table.state->blocks) return true;
    return fy_await<false>(c, &c.table.made[before], (uint32_t)fy_divide_up(c.intermediate, FY_HALF_N),
                           FY_AT_PULL_SPACE, c.rank, c.progress_timeout_ns);
}

/* v[k], 16 bytes number i + 32 k of a token row (`i`: of the lane), to the ring rows, or with a context the rows saved
 * there, of all lanes' rows (-1: none). */
template <bool KEEP, int BATCH>
FY_DEVICE void fy_put_row(const fy_gpu_call &c, const uint4 (&v)[BATCH], int row, int i) {
    int row16 = c.hidden / 8;
    bool saved = KEEP && row / FY_BLOCK_ROWS < c.context_blocks;
    int place = saved ? row : row % (c.ring_blocks * FY_BLOCK_ROWS);
    uint32_t all_saved = KEEP ? __ballot_sync(0xffffffffu, saved) : 0;
    for (uint32_t left = __ballot_sync(0xffffffffu, row >= 0); left; left &= left - 1) {
        int at = __ffs(left) - 1;
        uint4 *base = (uint4 *)(KEEP && all_saved >> at & 1 ? c.saved_x : c.table.x_ring);
        uint4 *to = base + (int64_t)__shfl_sync(0xffffffffu, place, at) * row16 + i;
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + 32 * k < row16) __stcg(to + 32 * k, v[k]);
    }
}

/* A token row, and the row that each lane wants it in (-1: none). `from` NULL: there is none. */
typedef struct fy_pulled_row {
    const uint4 *from;
    int row;
} fy_pulled_row;

/* Two token rows at once; the second may be none. */
template <bool KEEP>
FY_DEVICE void fy_pull_rows(const fy_gpu_call &c, fy_pulled_row a, fy_pulled_row b, int lane) {
    const int batch = FY_TRACE ? 6 : 8; /* a trace takes registers */
    int row16 = c.hidden / 8;
    for (int i = lane; i - lane < row16; i += 32 * batch) {
        uint4 v[batch], w[batch];
#pragma unroll
        for (int k = 0; k < batch; k++)
            if (i + 32 * k < row16) v[k] = __ldcg(a.from + i + 32 * k);
#pragma unroll
        for (int k = 0; k < batch; k++)
            if (b.from && i + 32 * k < row16) w[k] = __ldcg(b.from + i + 32 * k);
        fy_put_row<KEEP>(c, v, a.row, i);
        if (b.from) fy_put_row<KEEP>(c, w, b.row, i);
    }
}

/*
 * Lane k: the row that slot k of the token has here, if the pull of `row` is to bring it: a row of the same macrobatch
 * and not of the head; -1 otherwise.
 */
FY_DEVICE int fy_row_along(const fy_gpu_call &c, int rank, int slot, int row, int lane) {
    const fy_gpu_state *state = c.table.state;
    if (lane >= c.slots) return -1;
    int ring_rows = c.ring_blocks * FY_BLOCK_ROWS;
    int mine = c.table.slot_row[(int64_t)rank * c.max_tokens * c.slots + slot / c.slots * c.slots + lane];
    bool head = mine >= state->head_first && mine < state->head_end;
    return mine >= 0 && !head && mine / ring_rows == row / ring_rows ? mine : -1;
}

/* Zeros in rows [first, end) of one block. False: the call is over. */
template <bool KEEP>
FY_DEVICE bool fy_pull_padding(const fy_gpu_call &c, int first, int end, int lane) {
    fy_trace_begin(1, first / FY_BLOCK_ROWS);
    bool room = __all_sync(0xffffffffu, lane > 0 || fy_wait_for_ring(c, first));
    fy_trace_end(1, FY_AT_PULL_SPACE);
    if (!room) return false;
    bool saved = KEEP && first / FY_BLOCK_ROWS < c.context_blocks;
    int64_t place = saved ? first : first % (c.ring_blocks * FY_BLOCK_ROWS);
    fy_zero_rows((saved ? c.saved_x : c.table.x_ring) + place * c.hidden, end - first, c.hidden / 8, lane);
    return true;
}

/* The rows of one ticket of ROWS rows. False: the call is over. */
template <int ROWS, bool KEEP>
FY_DEVICE bool fy_pull_ticket(const fy_gpu_call &c, int ticket, bool fan_out, int lane) {
    const int per_tile = FY_TILE_M / ROWS;
    int4 tile = *(const int4 *)&c.table.tile[ticket / per_tile];
    int first = ticket % per_tile * ROWS, row = tile.y + first, rows = max(0, min(tile.z - first, ROWS));
    if (first >= (int)fy_round_to_blocks(tile.z)) return true;
    fy_trace_begin(0, row / FY_BLOCK_ROWS);
    int2 source = make_int2(0, 0);
    if (lane < rows) source = *(const int2 *)&c.table.source[row + lane];
    /* Where each row goes, and which are their tokens' first: the looks are all on their way at once. */
    int goal[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int rank = __shfl_sync(0xffffffffu, source.x, r), slot = __shfl_sync(0xffffffffu, source.y, r);
        goal[r] = r >= rows ? -1 : fan_out ? fy_row_along(c, rank, slot, row, lane) : lane == 0 ? row + r : -1;
    }
    uint32_t due = (1u << rows) - 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (__any_sync(0xffffffffu, goal[r] >= 0 && goal[r] < row + r)) due &= ~(1u << r);
    if (rows < ROWS && !fy_pull_padding<KEEP>(c, row + rows, row + ROWS, lane)) return false;
    uint32_t left = due;
    int remote = 0;
    auto next = [&]() {
        fy_pulled_row p = {nullptr, -1};
        if (left == 0) return p;
        int r = __ffs(left) - 1;
        left &= left - 1;
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (k == r) p.row = goal[k];
        int rank = __shfl_sync(0xffffffffu, source.x, r), slot = __shfl_sync(0xffffffffu, source.y, r);
        int64_t token = slot / c.slots;
        p.from = c.staged ? (const uint4 *)(c.peer[rank] + c.at.x) + token * (c.hidden / 8)
                          : (const uint4 *)(c.x + token * c.x_stride);
        remote += rank != c.rank;
        return p;
    };
    while (left) {
        fy_pulled_row a = next(), b = next();
        fy_trace_begin(1, row / FY_BLOCK_ROWS);
        bool room = __all_sync(0xffffffffu,
                               (a.row < 0 || fy_wait_for_ring(c, a.row)) && (b.row < 0 || fy_wait_for_ring(c, b.row)));
        fy_trace_end(1, FY_AT_PULL_SPACE);
        if (!room) return false;
        fy_pull_rows<KEEP>(c, a, b, lane);
    }
    fy_stored_before();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (due >> r & 1 && goal[r] >= 0) fy_add_relaxed_gpu(&c.table.pulled[goal[r] / FY_BLOCK_ROWS], 1);
    if (lane == 0) {
        int own = __popc(due) - remote;
        if (rows < ROWS) fy_add_relaxed_gpu(&c.table.pulled[row / FY_BLOCK_ROWS], ROWS - rows);
        if (own > 0) fy_add_relaxed_gpu(&c.table.state->pulls, own);
        if (remote > 0) fy_add_relaxed_gpu(&c.table.state->remote_pulls, remote);
    }
    fy_trace_end(0, FY_MARK_PULL);
    return true;
}

/* The first of the head's rows: waits for nobody, so multiplying warps too help before they do what they are for. */
template <bool KEEP>
FY_DEVICE void fy_pull_head(const fy_gpu_call &c) {
    const int per_tile = FY_TILE_M / FY_HEAD_ROWS;
    int lane = threadIdx.x & 31, ticket;
    while ((ticket = fy_take(&c.table.state->take_head, c.table.state->head_tiles * per_tile, lane)) >= 0)
        fy_pull_ticket<FY_HEAD_ROWS, KEEP>(c, ticket, false, lane);
}

template <bool KEEP>
FY_DEVICE void fy_pull_role(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    const int per_tile = FY_TILE_M / FY_PULL_ROWS;
    int lane = threadIdx.x & 31, head = state->head_tiles * per_tile, all = state->tiles * per_tile - head, ticket;
    int alone = c.fan_out && c.slots <= 32 ? state->all_head_tiles * per_tile : head + all;
    while ((ticket = head + fy_take(&c.table.state->take_pull, all, lane)) >= head)
        if (!fy_pull_ticket<FY_PULL_ROWS, KEEP>(c, ticket, ticket >= alone, lane)) return;
}

/*
 * By each warp but the loading and the choosing one, when it pulls no more. The last one of all blocks tells the host
 * how many rows were pulled: long before the launch ends, which would have to wait for what is on its way to the host.
 */
FY_DEVICE void fy_end_pulls(const fy_gpu_call &c, fy_block *block, bool apart) {
    const uint32_t warps = FY_THREADS / 32 - (apart ? 1 : 2); /* where nothing is multiplied nobody chooses */
    if (threadIdx.x % 32 != 0) return;                        /* this lane has counted the warp's */
    fy_fence_block();
    if (atomicAdd(&block->pulled, 1u) + 1 != warps) return;
    fy_fence_block();
    fy_gpu_state *state = c.table.state;
    if (fy_fetch_add_acq_rel_gpu(&state->finished, 1) != gridDim.x - 1) return;
    volatile fy_gpu_page *page = c.page;
    page->remote_pulls = __ldcg(&state->remote_pulls);
    page->pulls = __ldcg(&state->pulls) + page->remote_pulls;
}

#endif
