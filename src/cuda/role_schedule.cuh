/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule, in four small launches.
 *   count   sanitizes ids, counts the experts of each chunk of slots, clears arrived[] and complete[]
 *   rank    gives every slot its position among this rank's slots of the same expert; beside it stages x where others
 *           read it; then publishes to all peers
 *   wait    one block: waits for all peers, gives every expert its blocks and row tiles
 *   place   row <-> slot tables of the rows that come here, row tiles; clears the counters of the compute launch. One
 *           block more lists the product tickets, and one reports to the host and, where the caller wants them, writes
 *           rows of experts and load statistics
 * Reads: the caller's N, x, ids; peers' published counts, headers and slots.
 * Writes: symmetric tables, local tables, the report page; the caller's expert_rows and load.
 * Waits on: flag[source] of every rank (wait launch alone).
 * Publishes: counts, header, then flag, into every peer (the last block of the rank launch).
 * Registers: no limit worth stating; blocks of these launches never fill the device.
 */
#ifndef FERRY_CUDA_ROLE_SCHEDULE_CUH
#define FERRY_CUDA_ROLE_SCHEDULE_CUH

#include "cuda/kind.cuh"
#include "cuda/trace.cuh"
#include "ferry/ferry.h"
#include "rules/load.h"
#include "rules/place.h"
#include "rules/side.h"
#include "rules/tile.h"

/* Tokens that the call works on: none when too many were passed. */
FY_DEVICE int fy_call_tokens(const fy_gpu_call &c) {
    int n = *c.tokens;
    return n < 0 || n > c.max_tokens ? 0 : n;
}

template <class T>
FY_DEVICE T *fy_symmetric_at(const fy_gpu_call &c, int rank, uint64_t offset) {
    return (T *)(c.peer[rank] + offset);
}

FY_DEVICE int64_t fy_raw_id(const fy_gpu_call &c, int64_t slot) {
    return c.ids_are_64 ? ((const int64_t *)c.ids)[slot] : (int64_t)((const int32_t *)c.ids)[slot];
}

/* Block `block` of `blocks` that copy tokens to where peers read them. */
FY_DEVICE void fy_stage_tokens(const fy_gpu_call &c, int64_t block, int64_t blocks) {
    int row16 = c.hidden / 8;
    uint4 *to = fy_symmetric_at<uint4>(c, c.rank, c.at.x);
    int64_t all = (int64_t)fy_call_tokens(c) * row16;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < all; i += blocks * blockDim.x) {
        int64_t token = i / row16, part = i - token * row16;
        to[i] = __ldcs((const uint4 *)(c.x + token * c.x_stride) + part);
    }
}

FY_DEVICE void fy_count_role(const fy_gpu_call &c, int32_t *histogram) {
    fy_gpu_state *state = c.table.state;
    uint32_t call = state->calls + 1;
    int n = fy_call_tokens(c);
    int64_t all = (int64_t)n * c.slots;
    fy_gpu_slot *slots = fy_symmetric_at<fy_gpu_slot>(c, c.rank, c.at.slots[call & 1]);
    for (int64_t chunk = blockIdx.x; chunk * FY_CHUNK < all; chunk += gridDim.x) {
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x) histogram[e] = 0;
        __syncthreads();
        int64_t slot = chunk * FY_CHUNK + threadIdx.x;
        if (slot < all) {
            int bad;
            int expert = fy_clean_id(fy_raw_id(c, slot), c.experts, &bad);
            slots[slot].expert = expert;
            if (expert >= 0) atomicAdd(&histogram[expert], 1);
            if (bad) {
                atomicAdd(&state->bad_count, 1u);
                atomicMin(&state->bad_slot, (uint32_t)slot);
            }
        }
        __syncthreads();
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
            c.table.histogram[chunk * c.experts + e] = histogram[e];
        __syncthreads();
    }
    uint32_t *arrived = fy_symmetric_at<uint32_t>(c, c.rank, c.at.arrived);
    for (int64_t t = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; t < n; t += (int64_t)gridDim.x * blockDim.x) {
        uint32_t awaited = c.shared > 0;
        for (int k = 0; k < c.slots; k++) {
            int bad;
            awaited += fy_clean_id(fy_raw_id(c, t * c.slots + k), c.experts, &bad) >= 0;
        }
        arrived[t] = 0u - awaited;
        c.table.complete[t] = 0;
    }
}

/* Into every peer's memory: counts, header, then the flag. `total` is this rank's count of each expert. */
FY_DEVICE void fy_publish(const fy_gpu_call &c, uint32_t call, const int32_t *total) {
    const fy_gpu_state *state = c.table.state;
    int parity = call & 1;
    for (int r = 0; r < c.ranks; r++) {
        int32_t *counts = fy_symmetric_at<int32_t>(c, r, c.at.counts[parity]) + (int64_t)c.rank * c.experts;
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x) counts[e] = __ldcg(&total[e]);
    }
    if (threadIdx.x < c.ranks) {
        fy_gpu_header h;
        h.tokens = *c.tokens;
        h.bad_count = (int32_t)__ldcg(&state->bad_count);
        h.bad_slot = (int32_t)__ldcg(&state->bad_slot);
        h.spare = 0;
        h.bad_id = h.bad_count ? fy_raw_id(c, h.bad_slot) : 0;
        fy_symmetric_at<fy_gpu_header>(c, threadIdx.x, c.at.header[parity])[c.rank] = h;
    }
    fy_fence_sys();
    __syncthreads();
    if (threadIdx.x < c.ranks)
        fy_store_release_sys(fy_symmetric_at<uint32_t>(c, threadIdx.x, c.at.flag) + c.rank, call);
}

/*
 * The first `blocks` blocks rank, one chunk each, blocks without a chunk too; those behind them stage. `before`: this
 * chunk's first position of each expert.
 */
FY_DEVICE void fy_rank_role(const fy_gpu_call &c, int blocks, int32_t *before) {
    fy_gpu_state *state = c.table.state;
    uint32_t call = state->calls + 1;
    int n = fy_call_tokens(c);
    int64_t all = (int64_t)n * c.slots, chunk = blockIdx.x;
    int64_t chunks = all == 0 ? 1 : fy_divide_up(all, FY_CHUNK);
    int32_t *total = c.table.histogram + fy_divide_up((int64_t)c.max_tokens * c.slots, FY_CHUNK) * c.experts;
    if (chunk >= blocks) {
        fy_stage_tokens(c, chunk - blocks, gridDim.x - blocks);
    } else if (chunk < chunks) {
        fy_gpu_slot *slots = fy_symmetric_at<fy_gpu_slot>(c, c.rank, c.at.slots[call & 1]);
        int64_t slot = chunk * FY_CHUNK + threadIdx.x;
        int expert = slot < all ? slots[slot].expert : -1;
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x) before[e] = 0;
        __syncthreads();
        /* Threads that have no expert of their own share the chunks of one. */
        int parts = c.experts >= (int)blockDim.x ? 1 : blockDim.x / c.experts;
        for (int i = threadIdx.x; i < c.experts * parts; i += blockDim.x) {
            int e = i % c.experts, sum = 0;
#pragma unroll 16
            for (int64_t k = i / c.experts; k < chunk; k += parts) sum += c.table.histogram[k * c.experts + e];
            if (parts > 1)
                atomicAdd(&before[e], sum);
            else
                before[e] = sum;
        }
        /* Warps in order, each from where the one before has left the expert. */
        uint32_t same = __match_any_sync(0xffffffffu, expert), earlier = same & ((1u << (threadIdx.x & 31)) - 1);
        for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
            __syncthreads();
            if ((int)threadIdx.x / 32 != warp || expert < 0) continue;
            slots[slot].position = before[expert] + __popc(earlier);
            __syncwarp(same);
            if (!earlier) before[expert] += __popc(same);
        }
        __syncthreads();
        if (chunk == chunks - 1)
            for (int e = threadIdx.x; e < c.experts; e += blockDim.x) total[e] = before[e];
    }
    __shared__ uint32_t last;
    fy_fence_gpu();
    __syncthreads();
    if (threadIdx.x == 0) last = fy_fetch_add_acq_rel_gpu(&state->published, 1) == gridDim.x - 1;
    __syncthreads();
    if (last) fy_publish(c, call, total);
}

/* Exclusive sums over the items of a block of 1,024 threads, one pass of 1,024 items; `carry` goes on. */
FY_DEVICE int fy_scan_block(int value, int *warp_sums, int *carry) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, sum = value;
    for (int d = 1; d < 32; d *= 2) {
        int from = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += from;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int w = warp_sums[lane], s = w;
        for (int d = 1; d < 32; d *= 2) {
            int from = __shfl_up_sync(0xffffffffu, s, d);
            if (lane >= d) s += from;
        }
        warp_sums[lane] = s - w;
        if (lane == 31) warp_sums[32] = s;
    }
    __syncthreads();
    int result = *carry + warp_sums[warp] + sum - value;
    int all = warp_sums[32];
    __syncthreads();
    if (threadIdx.x == 0) *carry += all;
    __syncthreads();
    return result;
}

/* The item of ascending `first` [items + 1] whose range holds `value`. */
FY_DEVICE int fy_find(const int32_t *first, int items, int value) {
    int low = 0, high = items;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The block of the canonical tile, and its expert and piece. */
FY_DEVICE fy_tile_place fy_place_of_tile(const fy_gpu_call &c, int tile, int *expert) {
    int e = fy_find(c.table.first_tile, c.local_experts, tile);
    *expert = e;
    return fy_tile_at(c.table.first_block[e], c.table.first_block[e + 1], c.ring_blocks, tile - c.table.first_tile[e]);
}

/* The tile at a place; `number`: its own in the list that it goes to. */
FY_DEVICE fy_gpu_tile fy_lay_tile(const fy_gpu_call &c, int number, int expert, const fy_tile_place &p) {
    int64_t end = (int64_t)c.table.first_block[expert] * FY_BLOCK_ROWS + c.table.expert_rows[expert];
    int64_t piece_end = p.piece_end * FY_BLOCK_ROWS, row = p.block * FY_BLOCK_ROWS;
    end = end < piece_end ? end : piece_end;
    fy_gpu_tile t = {};
    t.expert = expert;
    t.row = (int32_t)row;
    t.rows = (int32_t)(end - row < FY_TILE_M ? end - row : FY_TILE_M);
    t.piece_first = number - (int)((p.block - p.piece_first) / FY_TILE_BLOCKS);
    t.piece_count = (int)fy_divide_up(p.piece_end - p.piece_first, FY_TILE_BLOCKS);
    return t;
}

/* Reports bad ids and too many tokens of any rank to the host; true when the call does nothing. */
FY_DEVICE bool fy_check_headers(const fy_gpu_call &c, uint32_t call) {
    const fy_gpu_header *header = fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[call & 1]);
    volatile fy_gpu_page *page = c.page;
    int64_t bad = 0;
    int first_bad = -1, too_many = -1;
    for (int r = 0; r < c.ranks; r++) {
        fy_gpu_header h = header[r];
        bad += h.bad_count;
        if (h.bad_count && first_bad < 0) first_bad = r;
        if ((h.tokens < 0 || h.tokens > c.max_tokens) && too_many < 0) too_many = r;
    }
    if (too_many >= 0 || bad) {
        int r = too_many >= 0 ? too_many : first_bad;
        page->report_status = too_many >= 0 ? FERRY_E_TOO_MANY_TOKENS : FERRY_E_BAD_ID;
        page->report_rank = r;
        page->report_count = too_many >= 0 ? header[r].tokens : bad;
        page->report_slot = too_many >= 0 ? -1 : header[r].bad_slot;
        page->report_id = too_many >= 0 ? 0 : header[r].bad_id;
        fy_fence_sys();
        page->report = call;
    }
    return too_many >= 0;
}

/* The head of the walk: canonical tiles [first, end), with which the last macrobatch begins; walk numbers from 0. */
typedef struct fy_head {
    int first, end;
} fy_head;

FY_DEVICE fy_head fy_head_of(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    fy_head h = {0, 0};
    if (state->macrobatches > 0) h.first = c.table.macro_tile[state->macrobatches - 1];
    h.end = min(h.first + c.all_head_tiles, state->tiles);
    return h;
}

/* All but its end where tiles follow: who lays the first of those knows the row. One thread. */
FY_DEVICE void fy_mark_head(const fy_gpu_call &c, const fy_head &h) {
    fy_gpu_state *state = c.table.state;
    state->all_head_tiles = h.end - h.first;
    state->head_tiles = min(c.head_tiles, h.end - h.first);
    state->head_first = (state->macrobatches - 1) * c.ring_blocks * FY_BLOCK_ROWS;
    if (h.end == state->tiles) state->head_end = state->blocks * FY_BLOCK_ROWS;
}

/* With peers the head's tiles are sorted: those that have rows of this rank's tokens alone come first, and products
 * begin with them while the rows of the others are still on the links. */
FY_DEVICE bool fy_head_is_sorted(const fy_gpu_call &c) { return c.ranks > 1 && c.all_head_tiles <= FY_HEAD_SORTED; }

/* What a tile of the head is sorted by: 2 * expert, and 1 if any of its rows is a peer's. */
FY_DEVICE int fy_head_key(const fy_gpu_call &c, int expert, const fy_gpu_tile &t) {
    const int32_t *base = c.table.base + (int64_t)expert * c.ranks + c.rank;
    int end = c.table.first_block[expert] * FY_BLOCK_ROWS + c.table.expert_rows[expert];
    if (c.rank + 1 < c.ranks) end = base[1];
    return 2 * expert + (t.row < base[0] || t.row + t.rows > end);
}

/* The walk number of the head's tile `index`, into whose description its new piece goes. */
FY_DEVICE int fy_sort_in_head(const int *key, int tiles, int index, fy_gpu_tile *t) {
    int near = 0, before = 0, earlier = 0, piece = 0, mine = key[index];
    for (int i = 0; i < tiles; i++) {
        near += !(key[i] & 1);
        before += i < index && (key[i] & 1) == (mine & 1);
        earlier += i < index && key[i] == mine;
        piece += key[i] == mine;
    }
    int walk = before + (mine & 1 ? near : 0);
    t->piece_first = walk - earlier;
    t->piece_count = piece;
    return walk;
}

/* The list of product tickets but for their numbers; one thread. A step is mini_tiles row tiles of one macrobatch. */
FY_DEVICE void fy_list_units(const fy_gpu_call &c, int tokens, int tiles, int macros) {
    fy_gpu_state *state = c.table.state;
    fy_gpu_unit *unit = c.table.unit;
    const int32_t *macro_tile = c.table.macro_tile;
    int units = 0;
    fy_gpu_unit open = {FY_END};
    auto add = [&](int kind, int first, int count) {
        fy_gpu_unit u = {kind, first, count, FY_GROUP_TILES};
        unit[units++] = u;
    };
    if (c.shared > 0 && tokens > 0) {
        int count = fy_parts(tokens, FY_TILE_M);
        add(FY_SHARED_MAKE, 0, count);
        open.kind = FY_SHARED_FINISH;
        open.tiles = count;
    }
    for (int m = macros - 1; m >= 0; m--) {
        int walked = tiles - macro_tile[m + 1];
        int count = macro_tile[m + 1] - macro_tile[m];
        for (int f = 0; f < count; f += c.mini_tiles) {
            int n = count - f < c.mini_tiles ? count - f : c.mini_tiles;
            /* The next step is made before this one is finished, so that h has time to become complete; but not over a
             * macrobatch's end, behind which steps take the place of those before them in the ring. */
            bool make_first = f > 0 || open.kind != FY_FINISH;
            if (open.kind != FY_END && !make_first) add(open.kind, open.first_tile, open.tiles);
            add(FY_MAKE, walked + f, n);
            if (open.kind != FY_END && make_first) add(open.kind, open.first_tile, open.tiles);
            open.kind = FY_FINISH;
            open.first_tile = walked + f;
            open.tiles = n;
        }
    }
    if (open.kind != FY_END) add(open.kind, open.first_tile, open.tiles);
    if (units > 0) unit[units - 1].group = FY_LAST_GROUP_TILES;
    add(FY_END, 0, 0);
    state->units = units - 1;
    state->steps = (units - 1) / 2 - (c.shared > 0 && tokens > 0); /* a step has two units */
}

/*
 * What a unit needs: to make h, room in the ring, which the macrobatch walked before leaves with its last unit; to
 * finish, h of the same tiles, and one unit more behind that (the unit before, but for the next step's h), so that the
 * sides stay close together: they share rows in the second-level cache.
 */
FY_DEVICE int fy_needs_of(const fy_gpu_call &c, const fy_gpu_unit *unit, int index) {
    const fy_gpu_state *state = c.table.state;
    int kind = unit[index].kind, first = unit[index].first_tile;
    if (kind == FY_SHARED_MAKE) return -1;
    if (kind == FY_MAKE) {
        int m = fy_find(c.table.macro_tile, state->macrobatches, state->tiles - 1 - first); /* walked backwards */
        int begin = state->tiles - c.table.macro_tile[m + 1], step = (first - begin) / c.mini_tiles;
        /* Of a macrobatch's steps before this one there are two units each, but the last one's second comes later. */
        return begin == 0 ? -1 : index - max(1, 2 * step);
    }
    const fy_gpu_unit *before = &unit[index - 1];
    bool next = before->kind == FY_MAKE && (kind == FY_SHARED_FINISH || before->first_tile != first);
    return index - 1 - next;
}

/* What units need, and the first ticket of each side in them and behind the last; one warp. */
FY_DEVICE void fy_number_tickets(const fy_gpu_call &c, int units) {
    fy_gpu_unit *unit = c.table.unit;
    int lane = threadIdx.x & 31, before[FY_SIDES] = {0, 0};
    for (int first = 0; first <= units; first += 32) {
        int i = first + lane, columns = 0, tiles = 0;
        if (i < units) {
            tiles = unit[i].tiles;
            columns = fy_columns_of(c, unit[i].kind);
            unit[i].needs = fy_needs_of(c, unit, i);
        }
#pragma unroll
        for (int s = 0; s < FY_SIDES; s++) {
            int mine = fy_side_tickets(tiles, columns, s), sum = mine;
            for (int d = 1; d < 32; d *= 2) {
                int below = __shfl_up_sync(0xffffffffu, sum, d);
                if (lane >= d) sum += below;
            }
            if (i <= units) unit[i].ticket[s] = before[s] + sum - mine;
            before[s] += __shfl_sync(0xffffffffu, sum, 31);
        }
    }
}

/* Rows of every expert over all ranks. */
FY_DEVICE int fy_rows_of_expert(const fy_gpu_call &c, const int32_t *counts, int expert) {
    int rows = 0;
    for (int s = 0; s < c.ranks; s++) rows += counts[(int64_t)s * c.experts + expert];
    return rows;
}

/*
 * Rows that come here, and the blocks of the rank that has most, which the keep launch looks at; for the host also rows
 * for peers' tokens, this rank's slots that have an expert, and table bytes from peers.
 */
FY_DEVICE void fy_count_rows(const fy_gpu_call &c, uint32_t call) {
    __shared__ int own_rows, remote_rows, own_slots, rank_blocks[FY_GPU_MAX_RANKS];
    if (threadIdx.x == 0) own_rows = remote_rows = own_slots = 0;
    if (threadIdx.x < FY_GPU_MAX_RANKS) rank_blocks[threadIdx.x] = 0;
    __syncthreads();
    const int32_t *counts = fy_symmetric_at<int32_t>(c, c.rank, c.at.counts[call & 1]);
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x) {
        atomicAdd(&own_slots, counts[(int64_t)c.rank * c.experts + e]);
        atomicAdd(&rank_blocks[c.table.expert_rank[e]], (int)fy_blocks_of_rows(fy_rows_of_expert(c, counts, e)));
        if (c.table.expert_local[e] < 0) continue;
        for (int s = 0; s < c.ranks; s++)
            atomicAdd(s == c.rank ? &own_rows : &remote_rows, counts[(int64_t)s * c.experts + e]);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const fy_gpu_header *header = fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[call & 1]);
    int64_t bytes = 0;
    for (int s = 0; s < c.ranks; s++)
        if (s != c.rank)
            bytes += header[s].tokens * (int64_t)c.slots * (int64_t)sizeof(fy_gpu_slot) +
                     c.experts * (int64_t)sizeof(int32_t) + (int64_t)sizeof(fy_gpu_header);
    int rows = own_rows + remote_rows, most_blocks = 0;
    for (int r = 0; r < c.ranks; r++) most_blocks = max(most_blocks, rank_blocks[r]);
    c.table.state->most_blocks = most_blocks;
    volatile fy_gpu_page *page = c.page;
    c.table.state->rows = rows;
    page->rows = rows;
    page->routed_products = 3 * (int64_t)rows;
    page->remote_rows = remote_rows;
    page->sum_rows = own_slots + (c.shared > 0 ? header[c.rank].tokens : 0);
    page->table_bytes = bytes;
}

/* The greatest value and its lowest index over a block, as value << 32 | ~index. */
FY_DEVICE void fy_busiest(unsigned long long *most, int rows, int index) {
    if (rows > 0) atomicMax(most, (unsigned long long)rows << 32 | (uint32_t)~index);
}

/* What the caller wants to know about the load (rules/load.h in parallel). One block. */
FY_DEVICE void fy_report_load(const fy_gpu_call &c, uint32_t call) {
    __shared__ unsigned long long rank_rows[FY_GPU_MAX_RANKS], total, most;
    __shared__ int bins[FY_LOAD_BINS], empty;
    const int32_t *counts = fy_symmetric_at<int32_t>(c, c.rank, c.at.counts[call & 1]);
    if (threadIdx.x < FY_GPU_MAX_RANKS) rank_rows[threadIdx.x] = 0;
    if (threadIdx.x < FY_LOAD_BINS) bins[threadIdx.x] = 0;
    if (threadIdx.x == 0) total = most = empty = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x) {
        int rows = fy_rows_of_expert(c, counts, e);
        if (c.expert_rows) c.expert_rows[e] = rows;
        atomicAdd(&rank_rows[c.table.expert_rank[e]], (unsigned long long)rows);
        atomicAdd(&total, (unsigned long long)rows);
        if (rows == 0) atomicAdd(&empty, 1);
        fy_busiest(&most, rows, e);
    }
    __syncthreads();
    if (!c.load) return;
    for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
        atomicAdd(&bins[fy_load_bin(fy_rows_of_expert(c, counts, e), (int64_t)total, c.experts)], 1);
    __syncthreads();
    if (threadIdx.x > 0) return;
    ferry_load l = {};
    l.rows = (int64_t)total;
    l.empty_experts = empty;
    if (most) l.busiest_expert = (int32_t) ~(uint32_t)most;
    for (int r = 0; r < c.ranks; r++) {
        if ((int64_t)rank_rows[r] <= l.busiest_rows) continue;
        l.busiest_rows = (int64_t)rank_rows[r];
        l.busiest_rank = r;
    }
    l.overload = fy_load_over(l.busiest_rows, l.rows, c.ranks);
    l.expert_overload = fy_load_over((int64_t)(most >> 32), l.rows, c.experts);
    for (int i = 0; i < FY_LOAD_BINS; i++) l.histogram[i] = bins[i];
    *c.load = l;
}

/* One block of 1,024 threads. */
FY_DEVICE void fy_wait_role(const fy_gpu_call &c) {
    __shared__ int warp_sums[33], carry_blocks, carry_tiles, failed;
    fy_gpu_state *state = c.table.state;
    uint32_t call = state->calls + 1;
    if (threadIdx.x == 0) carry_blocks = carry_tiles = failed = 0;
    fy_trace_launch_begin(c, FY_LAUNCH_WAIT);
    __syncthreads();
    if (threadIdx.x < c.ranks) {
        const uint32_t *flag = fy_symmetric_at<uint32_t>(c, c.rank, c.at.flag) + threadIdx.x;
        if (!fy_await<true>(c, flag, call, FY_AT_ENTER, threadIdx.x, c.enter_timeout_ns)) failed = 1;
    }
    __syncthreads();
    /* Only now: blocks that have begun hold a part of the GPU, and no wait for peers may. */
    cudaTriggerProgrammaticLaunchCompletion();
    fy_trace_launch_end(c, FY_LAUNCH_WAIT);
    fy_trace_launch_begin(c, FY_LAUNCH_LAY);
    if (threadIdx.x == 0) {
        if (!failed && fy_check_headers(c, call)) failed = 1;
        state->skip = failed;
        if (c.ring_call) c.ring_call[0] = c.ring_call[1] = 0;
        state->calls = call;
        state->tokens = failed ? 0 : *c.tokens;
        state->take_product[0] = state->take_product[FY_LINE_WORDS] = 0;
        state->take_pull = state->take_head = state->take_sum = state->take_share = state->listed = 0;
        state->published = state->bad_count = 0;
        state->finished = state->pulls = state->remote_pulls = 0;
        state->bad_slot = 0xffffffffu;
    }
    __syncthreads();
    if (failed) return;
    const int32_t *counts = fy_symmetric_at<int32_t>(c, c.rank, c.at.counts[call & 1]);
    for (int l0 = 0; l0 < c.local_experts; l0 += blockDim.x) {
        int l = l0 + threadIdx.x, rows = 0;
        if (l < c.local_experts)
            for (int s = 0; s < c.ranks; s++) rows += counts[(int64_t)s * c.experts + c.table.local_expert[l]];
        int blocks = (int)fy_blocks_of_rows(rows);
        int first = fy_scan_block(blocks, warp_sums, &carry_blocks);
        int tiles = (int)fy_tiles_between(first, first + blocks, c.ring_blocks);
        int first_tile = fy_scan_block(tiles, warp_sums, &carry_tiles);
        if (l < c.local_experts) {
            c.table.first_block[l] = first;
            c.table.first_tile[l] = first_tile;
            c.table.expert_rows[l] = rows;
            int base = first * FY_BLOCK_ROWS;
            for (int s = 0; s < c.ranks; s++) {
                c.table.base[(int64_t)l * c.ranks + s] = base;
                base += counts[(int64_t)s * c.experts + c.table.local_expert[l]];
            }
        }
    }
    int blocks = carry_blocks, tiles = carry_tiles, macros = (int)fy_divide_up(blocks, c.ring_blocks);
    if (threadIdx.x == 0) {
        c.table.first_block[c.local_experts] = blocks;
        c.table.first_tile[c.local_experts] = tiles;
        c.table.macro_tile[macros] = tiles;
        state->blocks = blocks;
        state->tiles = tiles;
        state->macrobatches = macros;
    }
    __syncthreads();
    for (int m = threadIdx.x; m < macros; m += blockDim.x) {
        int block = m * c.ring_blocks;
        int e = fy_find(c.table.first_block, c.local_experts, block);
        c.table.macro_tile[m] =
            c.table.first_tile[e] + (int)fy_tiles_between(c.table.first_block[e], block, c.ring_blocks);
    }
    fy_trace_launch_end(c, FY_LAUNCH_LAY);
}

/* The list of tickets, and the tiles of a sorted head: one block, beside those that place. */
FY_DEVICE void fy_list_role(const fy_gpu_call &c) {
    __shared__ int key[FY_HEAD_SORTED];
    const fy_gpu_state *state = c.table.state;
    fy_head head = fy_head_of(c);
    static_assert(32 + FY_HEAD_SORTED <= FY_PLACE_THREADS, "a thread sorts a tile");
    int index = (int)threadIdx.x - 32, expert; /* the first warp has the tickets */
    bool sorts = fy_head_is_sorted(c) && index >= 0 && index < head.end - head.first;
    fy_gpu_tile tile;
    if (threadIdx.x == 0) {
        fy_list_units(c, state->tokens, state->tiles, state->macrobatches);
        c.page->steps = state->steps;
    } else if (sorts) {
        fy_tile_place p = fy_place_of_tile(c, head.first + index, &expert);
        tile = fy_lay_tile(c, index, expert, p);
        key[index] = fy_head_key(c, expert, tile);
    }
    __syncthreads();
    if (threadIdx.x < 32) fy_number_tickets(c, state->units);
    if (sorts) {
        int walk = fy_sort_in_head(key, head.end - head.first, index, &tile);
        c.table.tile[walk] = tile;
    }
}

/* What the host and the caller want to know: likewise. */
FY_DEVICE void fy_report_role(const fy_gpu_call &c) {
    const fy_gpu_state *state = c.table.state;
    if (threadIdx.x == 0) {
        volatile fy_gpu_page *page = c.page;
        page->backward = 0;
        page->recomputed_rows = 0;
        page->shared_products = 3 * (int64_t)state->tokens;
        page->tokens = state->tokens;
        page->macrobatches = state->macrobatches;
        page->blocks = state->blocks;
    }
    fy_count_rows(c, state->calls);
    if (c.load || c.expert_rows) fy_report_load(c, state->calls);
}

/* Slots of rank `from` that thread `thread` of `threads` places, several looks on their way at once. */
FY_DEVICE void fy_place_slots(const fy_gpu_call &c, int from, int64_t thread, int64_t threads) {
    const int looks = 4;
    int parity = c.table.state->calls & 1;
    int64_t all = (int64_t)fy_symmetric_at<fy_gpu_header>(c, c.rank, c.at.header[parity])[from].tokens * c.slots;
    const int2 *slots = fy_symmetric_at<int2>(c, from, c.at.slots[parity]);
    int32_t *slot_row = c.table.slot_row + from * (int64_t)c.max_tokens * c.slots;
    for (int64_t i0 = thread; i0 < all; i0 += looks * threads) {
        int2 slot[looks];
        int row[looks];
#pragma unroll
        for (int k = 0; k < looks; k++) {
            slot[k] = make_int2(-1, 0);
            if (i0 + k * threads < all) slot[k] = __ldcg(slots + i0 + k * threads);
        }
#pragma unroll
        for (int k = 0; k < looks; k++) row[k] = slot[k].x < 0 ? -1 : c.table.expert_local[slot[k].x];
#pragma unroll
        for (int k = 0; k < looks; k++)
            if (row[k] >= 0) row[k] = c.table.base[(int64_t)row[k] * c.ranks + from] + slot[k].y;
#pragma unroll
        for (int k = 0; k < looks; k++) {
            int64_t i = i0 + k * threads;
            if (i >= all) break;
            slot_row[i] = row[k];
            fy_gpu_source source = {from, (int32_t)i};
            if (row[k] >= 0) c.table.source[row[k]] = source;
        }
    }
}

/* `blocks` blocks. */
FY_DEVICE void fy_place_role(const fy_gpu_call &c, int blocks) {
    fy_gpu_state *state = c.table.state;
    int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, threads = (int64_t)blocks * blockDim.x;
    /* Ranks side by side, so that nobody's slots are waited for after another's. */
    int teams = min(c.ranks, blocks), team = (int)blockIdx.x % teams, size = (blocks - team + teams - 1) / teams;
    for (int r = team; r < c.ranks; r += teams)
        fy_place_slots(c, (c.rank + r) % c.ranks, blockIdx.x / teams * (int64_t)blockDim.x + threadIdx.x,
                       (int64_t)size * blockDim.x);
    int tiles = state->tiles;
    fy_head head = fy_head_of(c);
    if (thread == 0) fy_mark_head(c, head);
    for (int64_t t = thread; t < tiles; t += threads) {
        int expert;
        fy_tile_place p = fy_place_of_tile(c, (int)t, &expert);
        int m = (int)(p.block / c.ring_blocks);
        int walk = tiles - c.table.macro_tile[m + 1] + (int)t - c.table.macro_tile[m];
        if (t < head.first || t >= head.end || !fy_head_is_sorted(c))
            c.table.tile[walk] = fy_lay_tile(c, walk, expert, p);
        if (t == head.end) state->head_end = (int)p.block * FY_BLOCK_ROWS;
    }
    int shared_blocks = c.shared > 0 ? (int)fy_divide_up(state->tokens, FY_BLOCK_ROWS) : 0;
    for (int64_t b = thread; b < state->blocks; b += threads) c.table.pulled[b] = c.table.made[b] = c.table.sent[b] = 0;
    for (int64_t b = thread; b < shared_blocks; b += threads)
        c.table.made[c.max_blocks + b] = c.table.sent[c.max_blocks + b] = 0;
}

#endif
