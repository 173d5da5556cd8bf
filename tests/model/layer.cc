/* SPDX-License-Identifier: Apache-2.0 */
/* The shape, the routing and the tables that both directions have. */
#include "layer.h"

#include "cuda/role_load.cuh"
#include "cuda/role_schedule.cuh"
#include "random.h"
#include "scheduler.h"

made_up_layer layer;

/* Small sizes, so that a case takes a millisecond; multiples of 8 that are rarely whole tiles. */
static void draw_shape() {
    fy_gpu_call &c = layer.call;
    layer.chains = layer.backward && chance(55);
    layer.cut = layer.chains || chance(30);
    int experts = layer.cut ? between(layer.chains ? 2 : 1, 4) : between(1, chance(50) ? 4 : 12);
    c.ranks = 1;
    c.experts = c.local_experts = experts;
    c.slots = layer.cut ? 1 : between(1, min(experts, 4));
    layer.state.tokens = layer.chains ? between(150, 500)
                         : layer.cut  ? between(150, 900)
                                      : between(0, chance(70) ? 150 : 500);
    c.max_tokens = max(layer.state.tokens, 1);
    bool tiny = chance(layer.chains ? 90 : 15);
    auto tiles = [&]() { return tiny ? 1 : chance(60) ? between(1, 3) : between(1, 8); };
    auto size = [](int count, int columns) { return (count - 1) * columns + 8 * between(1, columns / 8); };
    c.hidden = size(tiles(), FY_TILE_N);
    c.intermediate = size(tiles(), FY_HALF_N);
    if (layer.chains && tiny) c.hidden = max(c.hidden, 136); /* two row tiles of weights */
    if (!layer.backward && chance(2)) c.hidden = size(FY_SHORT_DEPTH * FY_TILE_K / FY_TILE_N + 1, FY_TILE_N);
    if (layer.backward && chance(70)) c.intermediate = min(c.intermediate, 512);
    c.shared = chance(35) ? size(between(1, 5), FY_HALF_N) : 0;
    c.mini_tiles = between(layer.chains ? 2 : 1, chance(60) ? 2 : 6);
    c.ranks = layer.backward || chance(50) ? 1 : 2;
    c.head_tiles = c.all_head_tiles = c.mini_tiles * between(1, chance(70) ? 1 : 4);
    if (c.ranks > 1) {
        c.head_tiles = c.mini_tiles;
        c.all_head_tiles = c.mini_tiles * between(1, 4);
    }
    c.fan_out = chance(70);
    c.staged = 1;
    c.limit = FY_NO_LIMIT;
}

/* An expert that the token has not yet, often the first ones; -1: none. */
static int draw_expert(const int *taken, int count, int skew) {
    for (int tries = 0; tries < 20; tries++) {
        int expert = layer.call.experts;
        for (int i = 0; i < skew; i++) expert = min(expert, below(layer.call.experts));
        if (std::find(taken, taken + count, expert) == taken + count) return expert;
    }
    return -1;
}

/* Experts of all slots; their blocks; and the tables that lead from slot to padded row and back. */
static void draw_routing() {
    fy_gpu_call &c = layer.call;
    int slots = layer.state.tokens * c.slots, skew = chance(50) ? 1 : 3;
    std::vector<int> expert(slots, -1), position(slots, 0);
    layer.rows.assign(c.experts, 0);
    for (int i = 0; i < slots; i++) {
        int k = i % c.slots;
        if (chance(95)) expert[i] = draw_expert(&expert[i - k], k, skew);
        if (expert[i] >= 0) position[i] = layer.rows[expert[i]]++;
    }
    layer.first_block.assign(c.experts + 1, 0);
    layer.base.assign((size_t)c.experts * c.ranks, 0);
    for (int e = 0; e < c.experts; e++)
        layer.first_block[e + 1] = layer.first_block[e] + (int)fy_blocks_of_rows(layer.rows[e]);
    layer.state.blocks = layer.first_block[c.experts];
    c.max_blocks = layer.state.blocks + below(3);
    layer.slot_row.assign(slots + 1, -1);
    layer.source.assign((size_t)(c.max_blocks + 3) * ROWS_OF_BLOCK, {0, 0});
    for (int i = 0; i < slots; i++) {
        if (expert[i] < 0) continue;
        int row = layer.first_block[expert[i]] * ROWS_OF_BLOCK + position[i];
        layer.slot_row[i] = row;
        layer.source[row] = {0, i};
    }
    /* Of several ranks all rows are treated alike, but for the order of the head: here only that order knows a peer. */
    for (int e = 0; e < c.experts; e++)
        for (int r = 0; r < c.ranks; r++)
            layer.base[e * c.ranks + r] =
                layer.first_block[e] * ROWS_OF_BLOCK + (r > 0 ? between(0, layer.rows[e]) : 0);
}

/* The ring's size decides macrobatches, and with them tiles. */
static void draw_ring() {
    fy_gpu_call &c = layer.call;
    fy_gpu_state &state = layer.state;
    c.ring_blocks = layer.chains ? between(2, 3)
                    : layer.cut  ? between(1, 5)
                    : chance(40) ? between(1, 4)
                                 : between(1, state.blocks + 1);
    layer.first_tile.assign(c.experts + 1, 0);
    for (int e = 0; e < c.experts; e++)
        layer.first_tile[e + 1] =
            layer.first_tile[e] + (int)fy_tiles_between(layer.first_block[e], layer.first_block[e + 1], c.ring_blocks);
    state.tiles = layer.first_tile[c.experts];
    state.macrobatches = (int)fy_divide_up(state.blocks, c.ring_blocks);
    layer.macro_tile.assign(state.macrobatches + 1, state.tiles);
    for (int m = 0; m < state.macrobatches; m++) {
        int block = m * c.ring_blocks, e = fy_find(layer.first_block.data(), c.experts, block);
        layer.macro_tile[m] = layer.first_tile[e] + (int)fy_tiles_between(layer.first_block[e], block, c.ring_blocks);
    }
}

static void clear_memory() {
    const fy_gpu_call &c = layer.call;
    layer.inner_pieces = fy_parts(c.intermediate, COLUMNS_OF_PIECE);
    layer.shared_pieces = fy_parts(c.shared, COLUMNS_OF_PIECE);
    layer.shared_blocks = (int)fy_blocks_of_rows(layer.state.tokens);
    for (tag_memory *m : {&layer.x_ring, &layer.dout_ring, &layer.weight_ring})
        m->clear_rows(c.ring_blocks * ROWS_OF_BLOCK);
    for (tag_memory *m : {&layer.h_ring, &layer.g_ring, &layer.u_ring, &layer.dg_ring, &layer.du_ring, &layer.wh_ring})
        m->clear_pieces(c.ring_blocks, layer.inner_pieces);
    layer.parts_ring.clear_pieces(c.ring_blocks, fy_parts(c.intermediate, FY_TILE_N));
    layer.x_context.clear_rows((c.max_blocks + 2) * ROWS_OF_BLOCK);
    for (tag_memory *m : {&layer.g_context, &layer.u_context}) m->clear_pieces(c.max_blocks + 2, layer.inner_pieces);
    for (tag_memory *m :
         {&layer.h_shared, &layer.g_shared, &layer.u_shared, &layer.dg_shared, &layer.du_shared, &layer.wh_shared})
        m->clear_pieces(layer.shared_blocks + 2, layer.shared_pieces);
}

static void point_tables() {
    fy_gpu_call &c = layer.call;
    fy_gpu_backward &b = layer.back;
    layer.tile.assign(c.max_blocks + 2, {});
    layer.unit.assign(3 * c.max_blocks + layer.state.macrobatches + 12, {});
    size_t counters = c.max_blocks + layer.shared_blocks + 4;
    for (std::vector<uint32_t> *v : {&layer.pulled, &layer.made, &layer.sent, &layer.remade}) v->assign(counters, 0);
    c.page = &layer.page;
    c.table.state = &layer.state;
    c.table.side = layer.side;
    c.table.first_block = layer.first_block.data();
    c.table.base = layer.base.data();
    c.table.first_tile = layer.first_tile.data();
    c.table.expert_rows = layer.rows.data();
    c.table.macro_tile = layer.macro_tile.data();
    c.table.slot_row = layer.slot_row.data();
    c.table.source = layer.source.data();
    c.table.tile = b.table.tile = layer.tile.data();
    c.table.unit = b.table.unit = layer.unit.data();
    c.table.pulled = layer.pulled.data();
    c.table.made = layer.made.data();
    c.table.sent = layer.sent.data();
    b.table.remade = layer.remade.data();
    b.table.state = &layer.back_state;
}

void layer_draw() {
    layer.call = {};
    layer.back = {};
    layer.state = {};
    layer.back_state = {};
    layer.page = {};
    draw_shape();
    draw_routing();
    draw_ring();
    clear_memory();
    point_tables();
}

std::string layer_describe() {
    const fy_gpu_call &c = layer.call;
    std::string text = layer.backward ? "backward" : "forward";
    auto add = [&](const char *name, int value) { text += std::string(", ") + name + " " + std::to_string(value); };
    add("tokens", layer.state.tokens);
    add("experts", c.experts);
    add("slots", c.slots);
    add("hidden", c.hidden);
    add("intermediate", c.intermediate);
    add("shared", c.shared);
    add("blocks", layer.state.blocks);
    add("ring blocks", c.ring_blocks);
    add("macrobatches", layer.state.macrobatches);
    add("tiles", layer.state.tiles);
    add("tiles of a step", c.mini_tiles);
    add("fan-out", c.fan_out);
    if (layer.backward || layer.keep)
        add("blocks in the context", layer.backward ? layer.back.context_blocks : c.context_blocks);
    if (layer.backward) {
        add("ringed", layer.ringed);
        add("data part", layer.data);
        add("weight part", layer.weight);
    }
    return text;
}
