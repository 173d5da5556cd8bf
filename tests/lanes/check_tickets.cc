/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of product tickets. Units make and finish the shared expert, then step after step, of which none goes over
 * a macrobatch's end; tickets of both sides go over every column of every tile of a unit once. What units need is
 * ticket_model's concern.
 */
#include "checks.h"

#include "cuda/tickets.cuh"

struct expected_unit {
    int kind, first_tile, tiles;
};

/* A step is made before the one before it is finished, but for the first one of a macrobatch that follows another. */
static std::vector<expected_unit> expected_units(const made_up_rank &q, int *steps) {
    const fy_gpu_call &c = q.call;
    std::vector<expected_unit> units;
    int shared_tiles = c.shared > 0 ? fy_parts(q.tokens, FY_TILE_M) : 0;
    expected_unit open = {FY_SHARED_FINISH, 0, shared_tiles};
    if (shared_tiles > 0) units.push_back({FY_SHARED_MAKE, 0, shared_tiles});
    auto macrobatch = [&](int tile) { return q.tile[tile].row / FY_BLOCK_ROWS / c.ring_blocks; };
    *steps = 0;
    for (int begin = 0, end; begin < q.state.tiles; begin = end) {
        for (end = begin + 1; end < q.state.tiles && end - begin < c.mini_tiles; end++)
            if (macrobatch(end) != macrobatch(begin)) break;
        bool made_first = begin == 0 || macrobatch(begin) == macrobatch(begin - 1);
        units.push_back({FY_MAKE, begin, end - begin});
        if (open.tiles > 0) units.insert(units.end() - (made_first ? 0 : 1), open);
        open = {FY_FINISH, begin, end - begin};
        ++*steps;
    }
    if (open.tiles > 0) units.push_back(open);
    return units;
}

/* Every ticket of unit `u` is a place of its own, whatever the sides share out. */
static void check_unit(const made_up_rank &q, int u, bool by_piece) {
    const fy_gpu_call &c = q.call;
    const fy_gpu_unit &unit = q.unit[u], &next = q.unit[u + 1];
    int columns = fy_columns_of(c, unit.kind), places = unit.tiles * columns;
    std::vector<int> hits(places);
    int tickets = next.ticket[0] - unit.ticket[0] + next.ticket[1] - unit.ticket[1];
    CHECK(tickets == places, c.rank, "unit %d: %d tickets for %d places", u, tickets, places);
    for (int side = 0; side < FY_SIDES; side++)
        for (int i = 0; i < next.ticket[side] - unit.ticket[side]; i++) {
            fy_side_tile place =
                fy_tile_of(i, side, unit.tiles, columns, unit.group, fy_is_shared(unit.kind) ? nullptr : q.tile.data(),
                           unit.first_tile, by_piece);
            bool inside = place.row >= 0 && place.row < unit.tiles && place.column >= 0 && place.column < columns;
            CHECK(inside && hits[place.row * columns + place.column]++ == 0, c.rank,
                  "unit %d: ticket %d of side %d is row %d, column %d once more, or beyond", u, i, side, place.row,
                  place.column);
        }
}

void check_tickets(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    int steps;
    std::vector<expected_unit> units = expected_units(q, &steps);
    int count = (int)units.size();
    CHECK(q.state.units == count && q.unit[count].kind == FY_END, c.rank, "%d units, not %d", q.state.units, count);
    CHECK(q.state.steps == steps && q.page.steps == steps, c.rank, "%d steps, not %d", q.state.steps, steps);
    CHECK(q.unit[0].ticket[0] == 0 && q.unit[0].ticket[1] == 0, c.rank, "tickets begin with %d", q.unit[0].ticket[0]);
    for (int u = 0; u < count && failure.empty(); u++) {
        const fy_gpu_unit &unit = q.unit[u];
        const expected_unit &e = units[u];
        CHECK(unit.kind == e.kind && unit.first_tile == e.first_tile && unit.tiles == e.tiles, c.rank,
              "unit %d: kind %d, %d tiles from %d, not kind %d, %d tiles from %d", u, unit.kind, unit.tiles,
              unit.first_tile, e.kind, e.tiles, e.first_tile);
        int group = u == count - 1 ? FY_LAST_GROUP_TILES : FY_GROUP_TILES;
        CHECK(unit.group == group, c.rank, "unit %d: groups of %d tiles, not %d", u, unit.group, group);
        CHECK(unit.needs < u, c.rank, "unit %d needs unit %d", u, unit.needs);
        for (bool by_piece : {false, true}) check_unit(q, u, by_piece);
    }
}
