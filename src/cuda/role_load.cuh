/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loading thread of a block: takes product tickets of its side (tickets.cuh), waits until a tile's rows are there
 * and its results have room, describes the tile to the consumers and feeds its operands through the stages with the
 * copy engine.
 * Reads: unit and tile tables, x ring, h ring, staged tokens, weights.  Writes: shared memory alone.
 * Waits on: pulled[block] (rows of x), made[block] (columns of h), sent[block of the macrobatch before] (room for h);
 *           empty[stage] inside the block. A wait outside the block happens before a tile is described, never within
 *           one, so consumers that were given a tile always get all of it. It is mostly none, because a look shortly
 *           before the end of the tile before has found everything there: then the stages do not run dry between tiles.
 * Publishes: full[stage]; work[] with the first full[stage] of a tile; the last work is FY_END.
 * Registers: the producer warpgroup's 120.
 */
#ifndef FERRY_CUDA_ROLE_LOAD_CUH
#define FERRY_CUDA_ROLE_LOAD_CUH

#include "cuda/block.cuh"
#include "cuda/prim_copy.cuh"
#include "cuda/tickets.cuh"
#include "cuda/trace.cuh"

enum {
    FY_LOOK_STEPS = 3,     /* before a tile's end its loading thread looks at the inputs of the next */
    FY_STEP_CLOCKS = 1024, /* of a whole tile's products */
    FY_SHORT_DEPTH = 64,   /* steps of a contraction that tiles are through before they are far apart */
    FY_FEW_TILES = 4       /* of a piece: its last one is much of what reads a column of weights */
};

FY_DEVICE fy_work fy_describe(const fy_gpu_call &c, const fy_ticket &ticket) {
    fy_work w;
    int4 u = *(const int4 *)ticket.unit;
    fy_gpu_unit unit = {u.x, u.y, u.z, u.w};
    int kind = unit.kind;
    bool make = fy_is_make(kind), shared = fy_is_shared(kind);
    fy_side_tile at = fy_tile_of(ticket.number, ticket.side, unit.tiles, fy_columns_of(c, kind), unit.group,
                                 shared ? nullptr : c.table.tile, unit.first_tile);
    int t = unit.first_tile + at.row;
    w.column = at.column;
    w.kind = kind;
    w.depth = (int)fy_divide_up(make ? c.hidden : fy_inner_of(c, shared), FY_TILE_K);
    if (shared) {
        w.row = w.load_row = t * FY_TILE_M;
        w.rows = min(c.table.state->tokens - w.row, (int)FY_TILE_M);
        w.counter = c.max_blocks + t * FY_TILE_BLOCKS;
        w.matrix = w.behind = 0;
    } else {
        int4 a = *(const int4 *)&c.table.tile[t];
        w.matrix = a.x;
        w.row = a.y;
        w.rows = a.z;
        w.counter = w.row / FY_BLOCK_ROWS;
        w.load_row = (w.counter % c.ring_blocks) * FY_BLOCK_ROWS;
        w.behind = t - max(a.w, unit.first_tile);
    }
    return w;
}

FY_DEVICE fy_work fy_take_product(const fy_gpu_call &c, fy_tickets &tickets) {
    fy_ticket ticket = fy_ticket_next(tickets);
    if (ticket.unit) return fy_describe(c, ticket);
    fy_work end;
    end.kind = FY_END;
    return end;
}

/* The first block of rows, for a trace; -1: tokens of the shared expert. */
FY_DEVICE int fy_rows_of(const fy_work &w) { return fy_is_shared(w.kind) ? -1 : w.counter; }

/*
 * Until the tile can run from begin to end without anyone else; `look`: whether it can now, without waiting. `blocks`:
 * of all rows here. What made the tile's rows is then known to the copy engine.
 */
FY_DEVICE bool fy_tile_can_run(const fy_gpu_call &c, const fy_work &w, int blocks, bool look) {
    auto reached = [&](const uint32_t *flag, uint32_t target, int site) {
        return look ? fy_load_acquire_gpu(flag) >= target : fy_await_between(c, flag, target, site, fy_rows_of(w));
    };
    uint32_t columns = fy_parts(fy_inner_of(c, fy_is_shared(w.kind)), FY_HALF_N);
    uint32_t pieces = fy_parts(c.hidden, FY_TILE_N);
    int used = fy_tile_blocks_used(w.rows);
    bool ok = true;
    for (int b = 0; b < used && ok; b++) {
        if (w.kind == FY_MAKE) {
            ok = reached(&c.table.pulled[w.counter + b], FY_BLOCK_ROWS, FY_AT_PULLED);
            int before = w.counter + b + c.ring_blocks;
            if (ok && before < blocks) ok = reached(&c.table.sent[before], pieces, FY_AT_MADE_SPACE);
        } else if (!fy_is_make(w.kind)) {
            ok = reached(&c.table.made[w.counter + b], columns, FY_AT_MADE);
        }
    }
    if (ok) fy_fence_async_global();
    return ok;
}

template <bool KEEP>
FY_DEVICE void fy_load_role(const fy_gpu_call &c, uint8_t *shared) {
    fy_block *block = fy_block_of(shared);
    fy_gpu_state *state = c.table.state;
    fy_tickets tickets = fy_tickets_open(c, c.table.unit, state->units, state->take_product);
    fy_stage at = {0, 0};
    int number = 0;
    fy_work w = fy_take_product(c, tickets);
    bool can_run = false;
    int blocks = state->blocks;
    for (;;) {
        if (w.kind != FY_END && !can_run && !fy_tile_can_run(c, w, blocks, false)) w.kind = FY_END;
        fy_barrier_wait(&block->empty[at.index], at.parity ^ 1);
        block->work[number % FY_WORKS] = w;
        if (w.kind == FY_END) {
            fy_barrier_arrive(&block->full[at.index]);
            return;
        }
        const fy_gpu_maps *maps = fy_is_shared(w.kind) ? &c.shared_expert : &c.routed;
        bool make = fy_is_make(w.kind);
        bool half = w.rows <= FY_BLOCK_ROWS; /* the second warpgroup has no rows here */
        const CUtensorMap *a = half ? (make ? &maps->x_short : &maps->h_short) : (make ? &maps->x : &maps->h),
                          *b0 = make ? &maps->gate : &maps->down, *b1 = &maps->up;
        int matrix = w.matrix;
        if (c.tables_of_weights && !fy_is_shared(w.kind)) {
            b0 = c.table.weight_map + (make ? 0 : 2 * c.local_experts) + matrix;
            b1 = c.table.weight_map + c.local_experts + matrix;
            matrix = 0;
            fy_fence_map(b0);
            if (make) fy_fence_map(b1);
        }
        /* With a context a tile's two blocks of x may lie in different places. */
        const CUtensorMap *a1 = a;
        int row1 = 0;
        bool apart = KEEP && w.kind == FY_MAKE;
        if (apart) {
            bool saved0 = w.counter < c.context_blocks, saved1 = w.counter + 1 < c.context_blocks;
            a = saved0 ? &c.keep.x : &maps->x_short;
            a1 = saved1 ? &c.keep.x : &maps->x_short;
            row1 = saved1 ? w.row + FY_BLOCK_ROWS : w.load_row + FY_BLOCK_ROWS;
            if (saved0) w.load_row = w.row;
        }
        int row = w.load_row, column = w.column * (make ? FY_HALF_N : FY_TILE_N);
        int depth = w.depth;
        /* A tile of few rows would run ahead of those before it, with which it shares columns of weights, and memory
         * would be read once more for them. */
        bool paced = half && w.behind > 0 && w.behind <= FY_FEW_TILES && depth > FY_SHORT_DEPTH;
        uint32_t began = fy_clock();
        can_run = false;
        fy_trace_begin(0, fy_rows_of(w));
        for (int k = 0; k < depth; k++) {
            while (paced && fy_clock() - began < (uint32_t)k * FY_STEP_CLOCKS) continue;
            if (k > 0) fy_barrier_wait(&block->empty[at.index], at.parity ^ 1);
            uint64_t *full = &block->full[at.index];
            fy_barrier_arrive_expecting(full, half ? FY_STAGE_BYTES - FY_A_BYTES / 2 : FY_STAGE_BYTES);
            uint8_t *to_b = fy_stage_b(shared, at.index);
            fy_load_box2(fy_stage_a(shared, at.index), a, full, k * FY_TILE_K, row);
            if (apart && !half)
                fy_load_box2(fy_stage_a(shared, at.index) + FY_A_BYTES / 2, a1, full, k * FY_TILE_K, row1);
            fy_load_box3(to_b, b0, full, k * FY_TILE_K, column, matrix);
            if (make) fy_load_box3(to_b + FY_B_BYTES / 2, b1, full, k * FY_TILE_K, column, matrix);
            fy_next_stage(at);
            /* The next ticket, while the stages are full; a look at its inputs as late as it holds up no step. */
            if (k == min(depth, (int)FY_STAGES) - 1) w = fy_take_product(c, tickets);
            if (k >= FY_STAGES && k == depth - FY_LOOK_STEPS)
                can_run = w.kind != FY_END && fy_tile_can_run(c, w, blocks, true);
        }
        fy_trace_end(0, FY_MARK_FEED);
        number++;
    }
}

#endif
