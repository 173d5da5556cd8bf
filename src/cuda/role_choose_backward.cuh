/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choosing thread of a block in the backward: takes tickets of its side (tickets.cuh), describes the tile and waits
 * until its inputs are there, while the loading thread feeds the tile before, whose stages do not run dry for the
 * taking of a ticket. No earlier: a ticket that waits here behind a whole tile keeps those that depend on it waiting.
 * Reads: unit, tile and segment tables.  Writes: shared memory alone.
 * Waits on: pulled[block] (rows of dout and x), remade[block], made[block], ready[segment], turn[tile]; begun
 *           inside the block. Room in the ring needs no wait here: pulls wait for it, and everything that a tile
 *           overwrites lies in rows whose pull it has awaited.
 * Publishes: chosen, with task[]; the last task is FY_LAST.
 * Registers: the producer warpgroup's 72.
 */
#ifndef FERRY_CUDA_ROLE_CHOOSE_BACKWARD_CUH
#define FERRY_CUDA_ROLE_CHOOSE_BACKWARD_CUH

#include "cuda/block_backward.cuh"
#include "cuda/tickets.cuh"
#include "cuda/trace.cuh"

enum { FY_PULLED_ALL = 2 * FY_BLOCK_ROWS }; /* rows and their weights */

FY_DEVICE fy_task fy_describe_weight(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_ticket &ticket) {
    fy_task t;
    int r = ticket.number, first = ticket.unit->first_tile;
    bool shared = b.table.segment[first].expert < 0;
    int each = fy_weight_tickets(c, b, shared, ticket.side);
    t.segment = first + r / each;
    r %= each;
    const fy_gpu_segment s = b.table.segment[t.segment];
    t.open = ticket.side == 0 ? r : b.weight_tickets[shared] - each + r;
    int2 tiles;
    for (t.which = FY_TASK_GATE;; t.which++) {
        tiles = fy_weight_tiles(c, shared, t.which);
        int here = b.to[shared][t.which].wanted ? fy_side_tickets(tiles.x, tiles.y, ticket.side) : 0;
        if (r < here || t.which == FY_TASK_DOWN) break;
        r -= here;
    }
    fy_side_tile at = fy_tile_of(r, ticket.side, tiles.x, tiles.y, ticket.unit->group, nullptr, 0, false);
    t.m = at.row;
    t.column = at.column;
    t.kind = FY_WEIGHT;
    t.rows = FY_TILE_M;
    t.shared = shared;
    t.matrix = shared ? 0 : s.expert;
    t.block = s.block;
    t.depth = s.blocks;
    t.resumes = s.resumes;
    t.closes = s.closes;
    t.turn = s.turn;
    const fy_gpu_to &to = b.to[shared][t.which];
    t.to = (to.is_f32 ? FY_TO_F32 : 0) | (to.add ? FY_TO_ADD : 0) | (to.table ? FY_TO_TABLE : 0);
    t.row = t.load_row = t.counter = 0;
    return t;
}

FY_DEVICE fy_task fy_describe_task(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_ticket &ticket) {
    int4 u = *(const int4 *)ticket.unit;
    fy_gpu_unit unit = {u.x, u.y, u.z, u.w};
    if (unit.kind == FY_WEIGHT) return fy_describe_weight(c, b, ticket);
    fy_task t;
    bool shared = fy_task_is_shared(unit.kind);
    int inner = fy_inner_of(c, shared), kind = fy_task_plain(unit.kind);
    int columns =
        kind == FY_REMAKE ? fy_parts(inner, FY_HALF_N) : fy_parts(kind == FY_GRAD ? inner : c.hidden, FY_TILE_N);
    fy_side_tile at = fy_tile_of(ticket.number, ticket.side, unit.tiles, columns, unit.group,
                                 shared ? nullptr : b.table.tile, unit.first_tile, ticket.unit->by_piece);
    int index = unit.first_tile + at.row;
    t.column = at.column;
    t.kind = unit.kind;
    t.depth = fy_parts(kind == FY_DX ? inner : c.hidden, FY_TILE_K);
    t.shared = shared;
    t.which = t.m = t.block = t.resumes = t.closes = t.open = 0;
    if (shared) {
        t.row = t.load_row = index * FY_TILE_M;
        t.rows = min(c.table.state->tokens - t.row, (int)FY_TILE_M);
        t.counter = c.max_blocks + index * FY_TILE_BLOCKS;
        t.matrix = 0;
    } else {
        fy_describe_rows(c, t, &b.table.tile[index]);
    }
    t.segment = shared ? 0 : b.table.block_segment[t.counter];
    return t;
}

FY_DEVICE fy_task fy_take_task(const fy_gpu_call &c, const fy_gpu_backward &b, fy_tickets &tickets) {
    fy_ticket ticket = fy_ticket_next(tickets);
    if (ticket.unit) return fy_describe_task(c, b, ticket);
    fy_task end;
    end.kind = FY_LAST;
    return end;
}

/* Until the tile can run from begin to end without anyone else. `segment_ready`: the last that was found ready. */
FY_DEVICE bool fy_wait_for_task(const fy_gpu_call &c, const fy_gpu_backward &b, const fy_task &t, int &segment_ready,
                                bool ringed) {
    auto await = [&](const uint32_t *flag, uint32_t target, int site) {
        return fy_await_between(c, flag, target, site, fy_rows_of(t));
    };
    int inner = fy_inner_of(c, t.shared);
    uint32_t columns = fy_parts(inner, FY_TILE_N);
    if (t.kind == FY_WEIGHT) {
        bool ok = segment_ready == t.segment || t.depth == 0 ||
                  await(&b.table.ready[t.segment], columns * (uint32_t)t.depth, FY_AT_GRADED);
        segment_ready = t.segment;
        if (ok && (t.resumes || !t.closes)) ok = await(&b.table.turn[t.open], 2 * (uint32_t)t.turn, FY_AT_TURN);
        return ok;
    }
    int kind = fy_task_plain(t.kind), used = fy_tile_blocks_used(t.rows);
    bool ok = true;
    for (int i = 0; i < used && ok; i++) {
        int counter = t.counter + i;
        if (kind == FY_DX) {
            ok = await(&c.table.made[counter], columns, FY_AT_GRADED);
            continue;
        }
        if (!t.shared) ok = await(&c.table.pulled[counter], FY_PULLED_ALL, FY_AT_PULLED);
        bool remade = t.shared ? b.remake_shared : fy_is_missing(c, b, t.counter + used - 1, ringed);
        if (ok && kind == FY_GRAD && remade)
            ok = await(&b.table.remade[counter], fy_parts(inner, FY_HALF_N), FY_AT_REMADE);
    }
    return ok;
}

FY_DEVICE void fy_choose_backward_role(const fy_gpu_call &c, const fy_gpu_backward &b, uint8_t *shared) {
    fy_backward_block *block = fy_backward_block_of(shared);
    bool ringed = b.table.state->ringed != 0;
    fy_gpu_backward_state *state = b.table.state;
    fy_tickets tickets = fy_tickets_open(c, b.table.unit, state->units, state->take_ticket);
    int segment_ready = -1;
    for (int number = 0;; number++) {
        if (number >= 1) fy_barrier_wait(&block->begun, (number - 1) & 1);
        fy_task t = fy_take_task(c, b, tickets);
        if (t.kind != FY_LAST && !fy_wait_for_task(c, b, t, segment_ready, ringed)) t.kind = FY_LAST;
        block->task[number % FY_WORKS] = t;
        fy_fence_async_global();
        fy_barrier_arrive(&block->chosen);
        if (t.kind == FY_LAST) return;
    }
}

#endif
