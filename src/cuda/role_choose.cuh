/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choosing warp of a block in the forward: takes product tickets of its side (tickets.cuh), describes each tile and
 * waits until its rows are there and its results have room, while the loading thread feeds the tile before. That takes
 * four looks in memory one behind the other, 5,000 clocks and more beside full stages: a loading thread that did it
 * itself would let them run dry. No earlier than that, for a ticket that waits behind a whole tile keeps those that
 * depend on it waiting. The first lane chooses; whenever it has to wait all of them answer posts (role_signal.cuh).
 * Reads: unit and tile tables.  Writes: shared memory alone.
 * Waits on: pulled[block] (rows of x), made[block] (columns of h), sent[block of the macrobatch before] (room for h);
 *           begun inside the block. A wait outside the block happens before a tile is described, never within one, so
 *           consumers that were given a tile always get all of it.
 * Publishes: chosen, with work[]; the last work is FY_END.
 * Registers: the producer warpgroup's 120.
 */
#ifndef FERRY_CUDA_ROLE_CHOOSE_CUH
#define FERRY_CUDA_ROLE_CHOOSE_CUH

#include "cuda/block.cuh"
#include "cuda/tickets.cuh"
#include "cuda/wait.cuh"

enum { FY_CHOOSE_REST_NS = 128 }; /* between two looks at what is awaited */

FY_DEVICE fy_work fy_describe(const fy_gpu_call &c, const fy_ticket &ticket) {
    fy_work w;
    int4 u = *(const int4 *)ticket.unit;
    fy_gpu_unit unit = {u.x, u.y, u.z, u.w};
    int kind = unit.kind;
    bool make = fy_is_make(kind), shared = fy_is_shared(kind);
    fy_side_tile at = fy_tile_of(ticket.number, ticket.side, unit.tiles, fy_columns_of(c, kind), unit.group,
                                 shared ? nullptr : c.table.tile, unit.first_tile, ticket.unit->by_piece);
    int t = unit.first_tile + at.row;
    w.site = 0;
    w.column = at.column;
    w.kind = kind;
    w.depth = (int)fy_divide_up(make ? c.hidden : fy_inner_of(c, shared), FY_TILE_K);
    if (shared) {
        w.row = w.load_row = t * FY_TILE_M;
        w.rows = min(c.table.state->tokens - w.row, (int)FY_TILE_M);
        w.counter = c.max_blocks + t * FY_TILE_BLOCKS;
        w.matrix = w.behind = 0;
    } else {
        w.behind = t - max(fy_describe_rows(c, w, &c.table.tile[t]), unit.first_tile);
    }
    return w;
}

FY_DEVICE fy_work fy_take_product(const fy_gpu_call &c, fy_tickets &tickets) {
    fy_ticket ticket = fy_ticket_next(tickets);
    if (ticket.unit) return fy_describe(c, ticket);
    fy_work end = {FY_END};
    return end;
}

/* A counter that a tile waits for; NULL: none. */
typedef struct fy_need {
    const uint32_t *flag;
    uint32_t target;
    int32_t site;
} fy_need;

enum { FY_TILE_NEEDS = 2 * FY_TILE_BLOCKS }; /* at most: inputs and room of each block */

/* What tile w waits for, number i. `blocks`: of all rows here. */
FY_DEVICE fy_need fy_need_of(const fy_gpu_call &c, const fy_work &w, int blocks, int i) {
    int counter = w.counter + i / 2, freed = counter + c.ring_blocks;
    uint32_t columns = fy_parts(fy_inner_of(c, fy_is_shared(w.kind)), FY_HALF_N);
    fy_need need = {nullptr, 0, 0};
    if (i / 2 >= fy_tile_blocks_used(w.rows) || w.kind == FY_SHARED_MAKE) return need;
    if (i % 2 == 1) {
        if (w.kind == FY_MAKE && freed < blocks)
            need = {&c.table.sent[freed], (uint32_t)fy_parts(c.hidden, FY_TILE_N), FY_AT_MADE_SPACE};
    } else if (w.kind == FY_MAKE) {
        need = {&c.table.pulled[counter], FY_BLOCK_ROWS, FY_AT_PULLED};
    } else {
        need = {&c.table.made[counter], columns, FY_AT_MADE};
    }
    return need;
}

/*
 * Until tile `w` of the first lane can run from begin to end without anyone else; what made its rows is then known to
 * the copy engine. `meanwhile` (): whether there was anything to do. False: the call is over. w.site becomes what it
 * had to wait for last.
 */
template <class MEANWHILE>
FY_DEVICE bool fy_await_tile(const fy_gpu_call &c, fy_work &w, int blocks, int lane, MEANWHILE meanwhile) {
    uint64_t start = fy_now();
    w.kind = __shfl_sync(0xffffffffu, w.kind, 0);
    w.rows = __shfl_sync(0xffffffffu, w.rows, 0);
    w.counter = __shfl_sync(0xffffffffu, w.counter, 0);
    fy_need need = {nullptr, 0, 0};
    if (lane < FY_TILE_NEEDS) need = fy_need_of(c, w, blocks, lane);
    bool polls = false; /* without order, as in wait.cuh */
    for (uint32_t turn = 1;; turn++) {
        uint32_t seen = 0;
        if (need.flag) seen = polls ? fy_load_relaxed(need.flag) : fy_load_acquire_gpu(need.flag);
        uint32_t missing = __ballot_sync(0xffffffffu, seen < need.target);
        if (missing == 0 && !polls) break;
        polls = missing != 0;
        if (!polls) continue;
        int first = __ffs(missing) - 1;
        w.site = __shfl_sync(0xffffffffu, need.site, first);
        bool over = turn % 64 == 0 && lane == first &&
                    fy_gives_up(c, need.site, c.rank, need.target, seen, start, c.progress_timeout_ns);
        if (__any_sync(0xffffffffu, over)) return false;
        if (!meanwhile()) __nanosleep(FY_CHOOSE_REST_NS);
    }
    __syncwarp(); /* what each lane has acquired is then before what the first one publishes */
    fy_fence_async_global();
    return true;
}

template <class MEANWHILE>
FY_DEVICE void fy_choose_role(const fy_gpu_call &c, uint8_t *shared, MEANWHILE meanwhile) {
    fy_block *block = fy_block_of(shared);
    fy_gpu_state *state = c.table.state;
    fy_tickets tickets = fy_tickets_open(c, c.table.unit, state->units, state->take_product);
    int lane = threadIdx.x & 31, blocks = state->blocks;
    for (int number = 0;; number++) {
        while (number > 0 && !__any_sync(0xffffffffu, lane == 0 && fy_barrier_test(&block->begun, (number - 1) & 1)))
            if (!meanwhile()) __nanosleep(FY_CHOOSE_REST_NS);
        fy_work w = {FY_END};
        if (lane == 0) w = fy_take_product(c, tickets);
        bool more = __any_sync(0xffffffffu, w.kind != FY_END) && fy_await_tile(c, w, blocks, lane, meanwhile);
        if (lane == 0) {
            if (!more) w.kind = FY_END;
            block->work[number % FY_WORKS] = w;
            fy_barrier_arrive(&block->chosen);
        }
        if (!more) return;
    }
}

#endif
