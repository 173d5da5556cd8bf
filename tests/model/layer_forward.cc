/* SPDX-License-Identifier: Apache-2.0 */
/* A forward's tickets, tiles and maps. */
#include "layer.h"

#include "cuda/block_backward.cuh"
#include "cuda/role_list.cuh"
#include "random.h"
#include "scheduler.h"

/* As fy_number_tickets, which a warp does together. */
static void number_tickets() {
    int before[FY_SIDES] = {0, 0};
    for (int i = 0; i <= layer.state.units; i++) {
        fy_gpu_unit &unit = layer.unit[i];
        bool last = i == layer.state.units;
        int columns = last ? 0 : fy_columns_of(layer.call, unit.kind);
        if (!last) unit.needs = fy_needs_of(layer.call, layer.unit.data(), i);
        unit.by_piece = chance(50); /* the rule's choice is one for speed */
        for (int s = 0; s < FY_SIDES; s++) {
            unit.ticket[s] = before[s];
            before[s] += fy_side_tickets(last ? 0 : unit.tiles, columns, s);
        }
    }
}

/* Tiles in walk order: macrobatches from the last to the first. */
static void lay_tiles() {
    const std::vector<int32_t> &macro = layer.macro_tile;
    fy_head head = fy_head_of(layer.call);
    fy_mark_head(layer.call, head);
    bool sorted = fy_head_is_sorted(layer.call);
    std::vector<int> key;
    for (int t = 0; t < layer.state.tiles; t++) {
        int expert;
        fy_tile_place place = fy_place_of_tile(layer.call, t, &expert);
        int m = (int)(place.block / layer.call.ring_blocks);
        int walk = layer.state.tiles - macro[m + 1] + t - macro[m];
        layer.tile[walk] = fy_lay_tile(layer.call, walk, expert, place);
        if (sorted && t >= head.first && t < head.end) key.push_back(fy_head_key(layer.call, expert, layer.tile[walk]));
        if (t == head.end) layer.state.head_end = (int)place.block * FY_BLOCK_ROWS;
    }
    std::vector<fy_gpu_tile> straight(layer.tile.begin(), layer.tile.begin() + (int)key.size());
    for (int i = 0; i < (int)key.size(); i++) {
        int walk = fy_sort_in_head(key.data(), (int)key.size(), i, &straight[i]);
        layer.tile[walk] = straight[i];
    }
}

static void make_maps() {
    fy_gpu_call &c = layer.call;
    const int half_a = FY_A_BYTES / 2;
    struct expert {
        fy_gpu_maps *maps;
        const tag_memory *x, *h;
    };
    for (const expert &s :
         {expert{&c.routed, &layer.x_ring, &layer.h_ring}, {&c.shared_expert, nullptr, &layer.h_shared}}) {
        s.maps->x = {s.x, FY_A_BYTES, 2};
        s.maps->x_short = {s.x, half_a, 1};
        s.maps->h = {s.h, FY_A_BYTES, 2};
        s.maps->h_short = {s.h, half_a, 1};
        s.maps->gate = s.maps->up = {nullptr, FY_B_BYTES / 2, 2};
        s.maps->down = {nullptr, FY_B_BYTES, 4};
    }
    c.keep.x = {&layer.x_context, half_a, 1};
}

void layer_lay_forward() {
    fy_gpu_state &state = layer.state;
    layer.keep = chance(50);
    if (layer.keep) layer.call.context_blocks = chance(50) ? between(0, state.blocks) : chance(50) ? 0 : state.blocks;
    for (int lane = 0; lane < 32; lane++) fy_list_units(layer.call, lane);
    if (state.units > 2 * layer.call.max_blocks + 3) return fail("more units than their table has room for");
    lay_tiles();
    number_tickets();
    make_maps();
}
