/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a backward, from what its forward left in the context, in two small launches; and what a forward with
 * a context leaves there.
 *   keep   after a forward's schedule: numbers, own experts, router weights; x where somebody may want it again
 *   stage  copies dout, x and router weights to where peers read them, clears counters, then publishes to all peers
 *   enter  one block: lays out row tiles, segments and the list of tickets beside the stage launch, then waits for it
 *          and for all peers, and reports to the host
 * Reads: the context; the caller's dout; after a forward the caller's x and router weights.
 * Writes: symmetric memory, local tables, the report page; after a forward the context.
 * Waits on: flag[source] of every rank (enter launch alone).
 * Publishes: header, then flag, into every peer (the last block of the stage launch); where no gradients of experts are
 *            wanted, all of the caller's ready[expert] (enter launch).
 * Registers: no limit worth stating; blocks of these launches never fill the device.
 */
#ifndef FERRY_CUDA_ROLE_SCHEDULE_BACKWARD_CUH
#define FERRY_CUDA_ROLE_SCHEDULE_BACKWARD_CUH

#include "cuda/block_backward.cuh"
#include "cuda/role_wait.cuh"
#include "cuda/tiles.cuh"

typedef struct fy_span {
    int64_t first, step;
} fy_span;

FY_DEVICE fy_span fy_grid_span(void) {
    fy_span s = {blockIdx.x * (int64_t)blockDim.x + threadIdx.x, (int64_t)gridDim.x * blockDim.x};
    return s;
}

/* `tokens` rows, then zeros up to a whole block. */
FY_DEVICE void fy_copy_tokens(uint16_t *to, const uint16_t *from, int64_t stride, int tokens, int hidden) {
    int row16 = hidden / 8;
    fy_span s = fy_grid_span();
    int64_t live = (int64_t)tokens * row16, all = fy_round_to_blocks(tokens) * row16;
    for (int64_t i = s.first; i < all; i += s.step) {
        int64_t token = i / row16, part = i - token * row16;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (i < live) v = __ldcs((const uint4 *)(from + token * stride) + part);
        ((uint4 *)to)[i] = v;
    }
}

/*
 * The tables of rows are in the context already: the forward's schedule has written them there. A forward that does
 * nothing leaves the context as it was, without rows where it was never filled.
 */
FY_DEVICE void fy_keep_role(const fy_gpu_call &c, const fy_gpu_context &context, fy_gpu_backward_state *backward) {
    const fy_gpu_state *state = c.table.state;
    fy_span s = fy_grid_span();
    if (state->skip && c.context_filled) return;
    if (state->skip) {
        for (int64_t l = s.first; l <= c.local_experts; l += s.step) context.first_block[l] = 0;
        if (s.first == 0) {
            fy_gpu_kept none = {state->calls};
            *context.kept = none;
        }
        return;
    }
    bool keeps_x = c.shared > 0 || state->most_blocks > c.least_context_blocks;
    if (s.first == 0) {
        const volatile fy_gpu_page *page = c.page; /* what the schedule has counted for the host */
        fy_gpu_kept kept = {state->calls,           state->tokens,       state->blocks,
                            state->tiles,           state->macrobatches, state->rows,
                            (int)page->remote_rows, (int)page->sum_rows, keeps_x};
        *context.kept = kept;
        backward->ring_call = state->calls;
        backward->x_call = c.staged ? state->calls : 0;
    }
    const fy_gpu_slot *slots = fy_symmetric_at<const fy_gpu_slot>(c, c.rank, c.at.slots[state->calls & 1]);
    for (int64_t i = s.first; i < (int64_t)state->tokens * c.slots; i += s.step) {
        int expert = slots[i].expert;
        context.expert[i] = expert;
        context.weights[i] = expert >= 0 ? c.weights[i] : 0.0f;
    }
    if (keeps_x) fy_copy_tokens(context.own_x, c.x, c.x_stride, state->tokens, c.hidden);
}

FY_DEVICE void fy_stage_role(const fy_gpu_call &c, const fy_gpu_backward &b) {
    fy_gpu_state *state = c.table.state;
    const fy_gpu_kept kept = *b.context.kept;
    uint32_t call = state->calls + 1;
    fy_span s = fy_grid_span();
    int64_t slots = (int64_t)kept.tokens * c.slots;
    if (b.staged)
        fy_copy_tokens(fy_symmetric_at<uint16_t>(c, c.rank, b.at.dout), b.dout, b.dout_stride, kept.tokens, c.hidden);
    if (c.ranks > 1 && kept.has_x && b.table.state->x_call != kept.call)
        fy_copy_tokens(fy_symmetric_at<uint16_t>(c, c.rank, c.at.x), b.context.own_x, c.hidden, kept.tokens, c.hidden);
    float *weights = fy_symmetric_at<float>(c, c.rank, b.at.weights);
    for (int64_t i = s.first; i < slots; i += s.step) weights[i] = b.context.weights[i];
    uint32_t *arrived = fy_symmetric_at<uint32_t>(c, c.rank, b.at.arrived);
    for (int64_t t = s.first; t < kept.tokens; t += s.step) arrived[t] = 0;
    for (int64_t i = s.first; i < kept.blocks; i += s.step)
        c.table.pulled[i] = c.table.made[i] = c.table.sent[i] = b.table.remade[i] = 0;
    int shared_blocks = c.shared > 0 ? (int)fy_blocks_of_rows(kept.tokens) : 0;
    for (int64_t i = c.max_blocks + s.first; i < c.max_blocks + shared_blocks; i += s.step)
        c.table.made[i] = c.table.sent[i] = b.table.remade[i] = 0;
    for (int64_t i = s.first; i < c.local_experts + kept.macrobatches + 1; i += s.step)
        b.table.ready[i] = b.table.gathered[i] = 0;
    for (int64_t i = s.first; i < c.local_experts; i += s.step) b.table.written[i] = 0;
    if (kept.macrobatches > 1)
        for (int64_t i = s.first; i < b.weight_tickets[0]; i += s.step) b.table.turn[i] = 0;
    __shared__ uint32_t last;
    fy_fence_sys();
    __syncthreads();
    if (threadIdx.x == 0) last = fy_fetch_add_acq_rel_gpu(&b.table.state->staged, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    if (threadIdx.x < c.ranks) {
        fy_gpu_header h;
        h.tokens = kept.tokens;
        h.bad_count = 0;
        h.bad_slot = 0;
        h.spare = b.parts;
        h.bad_id = kept.call;
        fy_symmetric_at<fy_gpu_header>(c, threadIdx.x, c.at.header[call & 1])[c.rank] = h;
        fy_fence_sys();
        fy_store_release_sys(fy_symmetric_at<uint32_t>(c, threadIdx.x, c.at.flag) + c.rank, call);
    }
}

/* Row tiles and the segment of every block, in parallel. Returns how many rows have to be computed again. */
FY_DEVICE int fy_lay_tiles(const fy_gpu_call &c, const fy_gpu_backward &b, int tiles, bool ringed) {
    __shared__ int again;
    if (threadIdx.x == 0) again = 0;
    __syncthreads();
    for (int t = threadIdx.x; t < tiles; t += blockDim.x) {
        int expert;
        fy_tile_place p = fy_place_of_tile(c, t, &expert);
        int first_block = c.table.first_block[expert];
        fy_gpu_tile tile = fy_lay_tile(c, t, expert, p);
        b.table.tile[t] = tile;
        int segment = b.table.first_segment[expert] + (int)(p.block / c.ring_blocks) - first_block / c.ring_blocks;
        for (int64_t i = p.block; i < p.block + FY_TILE_BLOCKS && i < p.piece_end; i++)
            b.table.block_segment[i] = segment;
        int last_block = (int)p.block + fy_tile_blocks_used(tile.rows) - 1;
        if (fy_is_missing(c, b, last_block, ringed)) atomicAdd(&again, tile.rows);
    }
    __syncthreads();
    return again;
}

/*
 * Segments: the shared expert's, those of experts with rows in canonical order, those of experts without. Returns
 * all.
 */
FY_DEVICE int fy_lay_segments(const fy_gpu_call &c, const fy_gpu_backward &b, int tokens) {
    __shared__ int warp_sums[33], segments, turns;
    if (threadIdx.x == 0) {
        segments = 1;
        turns = 0;
    }
    __syncthreads();
    for (int pass = 0; pass < 2; pass++)
        for (int l0 = 0; l0 < c.local_experts; l0 += blockDim.x) {
            int l = l0 + threadIdx.x, first = 0, end = 0;
            if (l < c.local_experts) {
                first = c.table.first_block[l];
                end = c.table.first_block[l + 1];
            }
            bool mine = l < c.local_experts && (end > first) == (pass == 0);
            int pieces = !mine ? 0 : end == first ? 1 : (end - 1) / c.ring_blocks - first / c.ring_blocks + 1;
            int segment = fy_scan_block(pieces, warp_sums, &segments);
            int turn = fy_scan_block(pieces > 1 ? pieces : 0, warp_sums, &turns);
            if (!mine) continue;
            b.table.first_segment[l] = segment;
            for (int i = 0; i < pieces; i++) {
                int low = max(first, (first / c.ring_blocks + i) * c.ring_blocks);
                int high = min(end, (first / c.ring_blocks + i + 1) * c.ring_blocks);
                fy_gpu_segment s = {l, low, high - low, i > 0, i == pieces - 1, turn + i, {0, 0}};
                b.table.segment[segment + i] = s;
            }
        }
    if (threadIdx.x == 0) {
        fy_gpu_segment s = {-1, 0, (int32_t)fy_blocks_of_rows(tokens), 0, 1, 0, {0, 0}};
        b.table.segment[0] = s;
    }
    __syncthreads();
    return segments;
}

/* The canonical tile that holds a block. */
FY_DEVICE int fy_tile_of_block(const fy_gpu_call &c, int block) {
    int e = fy_find(c.table.first_block, c.local_experts, block);
    int first = c.table.first_block[e], cut = block / c.ring_blocks * c.ring_blocks, piece = first > cut ? first : cut;
    return c.table.first_tile[e] + (int)fy_tiles_between(first, piece, c.ring_blocks) +
           (block - piece) / FY_TILE_BLOCKS;
}

/*
 * The list of tickets; one thread. Within a macrobatch: GRAD of the next step before DX of this one, so that DX rarely
 * waits; then the weight gradients, which have no reader inside the call: they run while dx rows travel and while the
 * next macrobatch's rows come in.
 */
FY_DEVICE void fy_list_backward(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_gpu_kept &kept, int segments,
                                int empty, bool ringed) {
    fy_gpu_backward_state *state = b.table.state;
    const int32_t *macro_tile = c.table.macro_tile;
    bool data = b.parts & FERRY_BACKWARD_DATA, weight = b.parts & FERRY_BACKWARD_WEIGHT;
    int units = 0, ticket[FY_SIDES] = {0, 0}, steps = 0;
    int inner = (int)fy_divide_up(c.intermediate, FY_TILE_N), half = (int)fy_divide_up(c.intermediate, FY_HALF_N);
    int hidden = (int)fy_divide_up(c.hidden, FY_TILE_N);
    auto list = [&](int kind, int first, int count, int needs, int tickets0, int tickets1, int by_piece = 0) {
        if (kind != FY_LAST && tickets0 + tickets1 == 0) return;
        fy_gpu_unit u = {kind, first, count, FY_GROUP_TILES, {ticket[0], ticket[1]}, needs, by_piece};
        b.table.unit[units++] = u;
        ticket[0] += tickets0;
        ticket[1] += tickets1;
    };
    auto add = [&](int kind, int first, int count, int columns, int needs) {
        list(kind, first, count, needs, fy_side_tickets(count, columns, 0), fy_side_tickets(count, columns, 1),
             fy_side_by_piece((int64_t)kept.tiles * columns, c.local_experts));
    };
    auto add_weights = [&](int first, int count, bool shared, int needs) {
        list(FY_WEIGHT, first, count, needs, count * fy_weight_tickets(c, b, shared, 0),
             count * fy_weight_tickets(c, b, shared, 1));
    };
    int shared_tiles = c.shared > 0 ? (int)fy_divide_up(kept.tokens, FY_TILE_M) : 0;
    if (b.remake_shared) add(FY_SHARED_REMAKE, 0, shared_tiles, (int)fy_divide_up(c.shared, FY_HALF_N), -1);
    add(FY_SHARED_GRAD, 0, shared_tiles, (int)fy_divide_up(c.shared, FY_TILE_N), units - 1);
    int shared_graded = units - 1;
    if (data) add(FY_SHARED_DX, 0, shared_tiles, hidden, shared_graded);
    int first_missing = b.context_blocks < kept.blocks ? fy_tile_of_block(c, b.context_blocks) : kept.tiles;
    for (int m = 0, room = -1; m < kept.macrobatches; m++, room = units - 1) { /* room in the ring: its last use */
        int end = macro_tile[m + 1], open = -1, graded = -1;
        for (int f = macro_tile[m]; f < end; f += c.mini_tiles, steps++) {
            int stop = f + c.mini_tiles < end ? f + c.mini_tiles : end;
            int missing = f > first_missing ? f : first_missing;
            bool remake = missing < stop && !(ringed && m == 0);
            if (remake) add(FY_REMAKE, missing, stop - missing, half, room);
            int grad = units;
            add(FY_GRAD, f, stop - f, inner, remake ? grad - 1 : room);
            if (data && open >= 0) add(FY_DX, open, f - open, hidden, graded);
            open = f;
            graded = grad;
        }
        if (data && open >= 0) add(FY_DX, open, end - open, hidden, graded);
        if (!weight) continue;
        int first = b.table.block_segment[m * c.ring_blocks];
        int last_block = (m + 1) * c.ring_blocks < kept.blocks ? (m + 1) * c.ring_blocks : kept.blocks;
        add_weights(first, b.table.block_segment[last_block - 1] - first + 1, false, graded);
    }
    if (weight) add_weights(segments - empty, empty, false, -1);
    if (weight && c.shared > 0) add_weights(0, 1, true, shared_graded);
    add(FY_LAST, 0, 0, 0, -1);
    state->units = units - 1;
    int head = kept.macrobatches == 0 ? 0 : macro_tile[1] < c.head_tiles ? macro_tile[1] : c.head_tiles;
    int macro_end = kept.blocks < c.ring_blocks ? kept.blocks : c.ring_blocks;
    state->head_tiles = head;
    state->head_end = head == 0 ? 0 : head < macro_tile[1] ? b.table.tile[head].row : macro_end * FY_BLOCK_ROWS;
    state->steps = steps;
}

/*
 * Counters for the host. A product is one of rows x hidden x inner: the gradient of h; two for dx; each weight
 * gradient; two for g and u again.
 */
FY_DEVICE void fy_report_backward(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_gpu_kept &kept, int again) {
    volatile fy_gpu_page *page = c.page;
    int64_t data = b.parts & FERRY_BACKWARD_DATA ? 2 : 0, routed = 1 + data, shared = 1 + data + 2 * b.remake_shared;
    for (int i = 0; i < 3; i++) {
        routed += b.to[0][i].wanted;
        shared += b.to[1][i].wanted;
    }
    page->backward = b.parts;
    page->rows = kept.rows;
    page->remote_rows = kept.remote_rows;
    page->sum_rows = kept.own_rows;
    page->tokens = kept.tokens;
    page->macrobatches = kept.macrobatches;
    page->steps = b.table.state->steps;
    page->blocks = kept.blocks;
    page->recomputed_rows = again;
    page->routed_products = routed * kept.rows + 2 * (int64_t)again;
    page->shared_products = shared * kept.tokens;
}

/*
 * One block of 1,024 threads. What the context alone decides is laid out beside the stage launch, which touches none of
 * it; then this launch waits for that one and for the peers.
 */
FY_DEVICE void fy_enter_role(const fy_gpu_call &c, const fy_gpu_backward &b) {
    __shared__ int failed;
    fy_gpu_state *state = c.table.state;
    const fy_gpu_kept kept = *b.context.kept;
    uint32_t call = state->calls + 1;
    bool ringed = b.table.state->ring_call == kept.call;
    fy_trace_launch_begin(c, FY_LAUNCH_LIST);
    int segments = fy_lay_segments(c, b, kept.tokens), empty = 0;
    int again = fy_lay_tiles(c, b, kept.tiles, ringed);
    if (threadIdx.x == 0) failed = 0;
    __syncthreads();
    for (int l0 = 0; l0 < c.local_experts; l0 += blockDim.x) {
        int l = l0 + threadIdx.x;
        bool none = l < c.local_experts && c.table.first_block[l] == c.table.first_block[l + 1];
        empty += __syncthreads_count(none);
    }
    if (threadIdx.x == 0) fy_list_backward(c, b, kept, segments, empty, ringed);
    fy_trace_launch_end(c, FY_LAUNCH_LIST);
    cudaGridDependencySynchronize();
    fy_trace_launch_begin(c, FY_LAUNCH_ENTER);
    if (threadIdx.x < c.ranks) {
        const uint32_t *flag = fy_symmetric_at<uint32_t>(c, c.rank, c.at.flag) + threadIdx.x;
        const fy_gpu_header *header = fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[call & 1]) + threadIdx.x;
        if (!fy_await<true>(c, flag, call, FY_AT_ENTER, threadIdx.x, c.enter_timeout_ns)) {
            failed = 1;
        } else if (header->spare != b.parts || header->bad_id != kept.call) {
            bool parts = header->spare != b.parts;
            fy_device_raise(c, FY_AT_KIND, threadIdx.x, parts ? (uint64_t)b.parts : (uint64_t)kept.call,
                            parts ? (uint64_t)header->spare : (uint64_t)header->bad_id);
            failed = 1;
        }
    }
    __syncthreads();
    fy_trace_launch_end(c, FY_LAUNCH_ENTER);
    /* Only now: blocks that have begun hold a part of the GPU, and no wait for peers may. */
    cudaTriggerProgrammaticLaunchCompletion();
    if (threadIdx.x == 0) {
        state->skip = failed;
        state->calls = call;
        state->tokens = failed ? 0 : kept.tokens;
        state->blocks = kept.blocks;
        state->tiles = kept.tiles;
        state->macrobatches = kept.macrobatches;
        state->rows = kept.rows;
        b.table.state->take_ticket[0] = b.table.state->take_ticket[FY_LINE_WORDS] = 0;
        b.table.state->take_pull = b.table.state->take_sum = b.table.state->take_head = 0;
        b.table.state->finished = b.table.state->pulls = b.table.state->remote_pulls = 0;
        b.table.state->staged = 0;
        b.table.state->ringed = ringed;
        if (kept.has_x) b.table.state->x_call = kept.call;
        /* The ring ends with the last macrobatch: still the forward's first only when there is no other. */
        b.table.state->ring_call = kept.macrobatches <= 1 ? kept.call : 0;
        if (!failed) fy_report_backward(c, b, kept, again);
    }
    /* No gradients are wanted: they are there. */
    if (!failed && b.ready && b.weight_tickets[0] == 0)
        for (int l = threadIdx.x; l < c.local_experts; l += blockDim.x)
            fy_store_release_sys(b.ready + l, b.ready_value);
}

#endif
