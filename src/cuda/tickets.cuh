/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of product tickets as a block sees it: units, each with tickets of side 0 and of side 1 (rules/side.h). A
 * block takes tickets of its own side, in order. It begins one only when all tickets of the other side in the units
 * that it needs are taken too, and takes those itself that are left. Within its unit a ticket waits at most for lower
 * numbers of its own side (weight gradients of a cut expert). So nobody waits for a ticket that nobody has taken, and
 * any number of resident blocks finishes, on whatever sides they are.
 */
#ifndef FERRY_CUDA_TICKETS_CUH
#define FERRY_CUDA_TICKETS_CUH

#include "cuda/block.cuh"
#include "rules/side.h"

/* Tickets taken from each side and not handed out yet (-1: none) and their units; `units` behind the last. Of a side
 * from which none is taken: the first unit that may have tickets left. */
typedef struct fy_tickets {
    const fy_gpu_unit *unit;
    uint32_t *take; /* [FY_SIDES], lines apart */
    int32_t units, side;
    int32_t own, own_unit, other, other_unit;
} fy_tickets;

/* A ticket handed out: its number among those of a unit's side. */
typedef struct fy_ticket {
    const fy_gpu_unit *unit; /* NULL: there are no more */
    int32_t number, side;
} fy_ticket;

FY_DEVICE fy_tickets fy_tickets_open(const fy_gpu_call &c, const fy_gpu_unit *unit, int units, uint32_t *take) {
    uint32_t sm = fy_multiprocessor();
    fy_tickets t = {unit, take, units, sm < FY_GPU_MAX_SMS ? (int)c.table.side[sm] : 0, -1, 0, -1, 0};
    return t;
}

/* The unit of a ticket, not before unit `from`. */
FY_DEVICE int fy_unit_of(const fy_tickets &t, int side, int from, int ticket) {
    while (from < t.units && ticket >= t.unit[from + 1].ticket[side]) from++;
    return from;
}

FY_DEVICE fy_ticket fy_ticket_next(fy_tickets &t) {
    uint32_t *own = t.take + t.side * FY_LINE_WORDS, *other = t.take + (1 - t.side) * FY_LINE_WORDS;
    int taken = (int)fy_load_relaxed(other); /* beside the addition */
    if (t.own < 0) {
        t.own = (int)atomicAdd(own, 1u);
        t.own_unit = fy_unit_of(t, t.side, t.own_unit, t.own);
    }
    int needs = t.own_unit < t.units ? t.unit[t.own_unit].needs : t.units - 1;
    if (t.other < 0 && t.other_unit <= needs) {
        t.other_unit = fy_unit_of(t, 1 - t.side, t.other_unit, taken);
        if (t.other_unit <= needs) {
            t.other = (int)atomicAdd(other, 1u);
            t.other_unit = fy_unit_of(t, 1 - t.side, t.other_unit, t.other);
        }
    }
    /* Of two the one whose unit, then number is lower: it waits for lower ones alone, and those are all taken. */
    bool help = t.other >= 0 && t.other_unit < t.units && t.other_unit <= t.own_unit;
    if (help && t.other_unit == t.own_unit) {
        const int32_t *first = t.unit[t.own_unit].ticket;
        help = t.other - first[1 - t.side] <= t.own - first[t.side];
    }
    int side = help ? 1 - t.side : t.side, index = help ? t.other_unit : t.own_unit;
    fy_ticket r = {nullptr, help ? t.other : t.own, side};
    if (index == t.units) return r;
    r.unit = t.unit + index;
    r.number -= r.unit->ticket[side];
    if (help)
        t.other = -1;
    else
        t.own = -1;
    return r;
}

/*
 * Where a side's ticket is among `rows` x `columns` tiles. `tile`: the table in which the rows begin at `first`, and
 * whose pieces are not mixed; NULL: the rows are one piece. By pieces or by columns.
 */
FY_DEVICE fy_side_tile fy_tile_of(int ticket, int side, int rows, int columns, int most, const fy_gpu_tile *tile,
                                  int first, bool by_piece) {
    fy_side_tile in_middle = {fy_side_middle_row(rows, columns, side, ticket), columns / 2};
    if (!by_piece && in_middle.row >= 0) return in_middle;
    int tickets = rows * columns, number = fy_side_number(tickets, side, ticket), low = 0, high = rows;
    if (tile) {
        const fy_gpu_tile *t = &tile[first + (by_piece ? number / columns : ticket / (columns / 2))];
        low = max(low, t->piece_first - first);
        high = min(high, t->piece_first + t->piece_count - first);
    }
    return by_piece ? fy_side_of_piece(number, side, tickets, columns, low, high, most)
                    : fy_side_whole(ticket, side, columns, low, high, most);
}

/* Into a tile's description `d`: rows, counters and weights of a routed row tile. The number of its piece's first tile.
 */
template <class T>
FY_DEVICE int fy_describe_rows(const fy_gpu_call &c, T &d, const fy_gpu_tile *tile) {
    int4 a = *(const int4 *)tile;
    d.matrix = a.x;
    d.row = a.y;
    d.rows = a.z;
    d.counter = d.row / FY_BLOCK_ROWS;
    d.load_row = d.counter % c.ring_blocks * FY_BLOCK_ROWS;
    return a.w;
}

#endif
