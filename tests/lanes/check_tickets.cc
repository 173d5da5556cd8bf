/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of product tickets: units make and finish every tile once, tickets of both sides go over every column of
 * every tile of a unit once. What units need is ticket_model's concern.
 */
#include "checks.h"

#include "cuda/tickets.cuh"

/* Every ticket of unit `u` is a place of its own. */
static void check_unit(const made_up_rank &q, int u) {
    const fy_gpu_call &c = q.call;
    const fy_gpu_unit &unit = q.unit[u], &next = q.unit[u + 1];
    int columns = fy_columns_of(c, unit.kind), places = unit.tiles * columns;
    std::vector<int> hits(places);
    int tickets = next.ticket[0] - unit.ticket[0] + next.ticket[1] - unit.ticket[1];
    CHECK(tickets == places, c.rank, "unit %d: %d tickets for %d places", u, tickets, places);
    for (int side = 0; side < FY_SIDES; side++)
        for (int i = 0; i < next.ticket[side] - unit.ticket[side]; i++) {
            fy_side_tile place = fy_tile_of(i, side, unit.tiles, columns, unit.group,
                                            fy_is_shared(unit.kind) ? nullptr : q.tile.data(), unit.first_tile);
            bool inside = place.row >= 0 && place.row < unit.tiles && place.column >= 0 && place.column < columns;
            CHECK(inside && hits[place.row * columns + place.column]++ == 0, c.rank,
                  "unit %d: ticket %d of side %d is row %d, column %d once more, or beyond", u, i, side, place.row,
                  place.column);
        }
}

void check_tickets(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    int shared_tiles = c.shared > 0 ? fy_parts(q.tokens, FY_TILE_M) : 0, done[FY_END] = {};
    CHECK(q.unit[q.state.units].kind == FY_END, c.rank, "unit %d is not the end", q.state.units);
    CHECK(q.unit[0].ticket[0] == 0 && q.unit[0].ticket[1] == 0, c.rank, "tickets begin with %d", q.unit[0].ticket[0]);
    for (int u = 0; u < q.state.units; u++) {
        const fy_gpu_unit &unit = q.unit[u];
        CHECK(unit.kind >= 0 && unit.kind < FY_END, c.rank, "unit %d is of no kind", u);
        CHECK(unit.first_tile == done[unit.kind] && unit.tiles > 0, c.rank, "unit %d begins with tile %d, not %d", u,
              unit.first_tile, done[unit.kind]);
        CHECK(unit.tiles <= c.mini_tiles || fy_is_shared(unit.kind), c.rank, "unit %d has %d tiles", u, unit.tiles);
        done[unit.kind] += unit.tiles;
        CHECK(done[FY_FINISH] <= done[FY_MAKE] && done[FY_SHARED_FINISH] <= done[FY_SHARED_MAKE], c.rank,
              "unit %d finishes what nobody makes", u);
        CHECK(unit.needs < u, c.rank, "unit %d needs unit %d", u, unit.needs);
        check_unit(q, u);
    }
    for (int kind : {FY_MAKE, FY_FINISH, FY_SHARED_MAKE, FY_SHARED_FINISH}) {
        int tiles = fy_is_shared(kind) ? shared_tiles : q.state.tiles;
        CHECK(done[kind] == tiles, c.rank, "units of kind %d have %d tiles, not %d", kind, done[kind], tiles);
    }
}
