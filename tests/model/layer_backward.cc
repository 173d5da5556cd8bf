/* SPDX-License-Identifier: Apache-2.0 */
/* A backward's segments, tickets, tiles and maps, and what its forward has left in the context and in the ring. */
#include "layer.h"

#include "cuda/block_backward.cuh"
#include "cuda/role_schedule_backward.cuh"
#include "random.h"
#include "scheduler.h"

static void draw_parts() {
    fy_gpu_backward &b = layer.back;
    int blocks = layer.state.blocks, parts = layer.chains ? chance(85) ? 2 : 3 : between(1, 3);
    layer.data = parts & 1;
    layer.weight = parts & 2;
    b.parts = (layer.data ? FERRY_BACKWARD_DATA : 0) | (layer.weight ? FERRY_BACKWARD_WEIGHT : 0);
    bool all_saved = layer.chains && chance(85);
    b.context_blocks = all_saved ? blocks : chance(50) ? between(0, blocks) : chance(50) ? 0 : blocks;
    b.remake_shared = b.context_blocks == 0 && layer.call.shared > 0;
    b.staged = 1;
    layer.back_state.ringed = layer.ringed = chance(50);
    for (int shared = 0; shared < 2; shared++)
        for (int which = FY_TASK_GATE; which <= FY_TASK_DOWN; which++) {
            if (!layer.weight || (shared && layer.call.shared == 0)) continue;
            b.to[shared][which].wanted = chance(85);
            int2 tiles = fy_weight_tiles(layer.call, shared, which);
            if (b.to[shared][which].wanted) b.weight_tickets[shared] += tiles.x * tiles.y;
        }
}

/* As fy_lay_segments, which a block does together: the shared expert's, those of experts with rows, of those without.
 */
static int lay_segments() {
    const int ring = layer.call.ring_blocks;
    layer.first_segment.assign(layer.call.experts + 2, 0);
    layer.segment.assign(layer.call.experts + layer.state.macrobatches + 4, {});
    layer.segment[0] = {-1, 0, layer.shared_blocks, 0, 1, 0, {0, 0}};
    int segments = 1, turns = 0;
    for (bool empty : {false, true})
        for (int e = 0; e < layer.call.experts; e++) {
            int first = layer.first_block[e], end = layer.first_block[e + 1];
            if ((end == first) != empty) continue;
            int pieces = empty ? 1 : (end - 1) / ring - first / ring + 1;
            layer.first_segment[e] = segments;
            for (int i = 0; i < pieces; i++) {
                int low = max(first, (first / ring + i) * ring), high = min(end, (first / ring + i + 1) * ring);
                layer.segment[segments + i] = {e, low, high - low, i > 0, i == pieces - 1, turns + i, {0, 0}};
            }
            segments += pieces;
            if (pieces > 1) turns += pieces;
        }
    return segments;
}

/* As fy_lay_tiles. */
static void lay_tiles() {
    const int ring = layer.call.ring_blocks;
    layer.block_segment.assign(layer.call.max_blocks + 2, -1);
    for (int t = 0; t < layer.state.tiles; t++) {
        int expert;
        fy_tile_place place = fy_place_of_tile(layer.call, t, &expert);
        layer.tile[t] = fy_lay_tile(layer.call, t, expert, place);
        int segment = layer.first_segment[expert] + (int)place.block / ring - layer.first_block[expert] / ring;
        for (int64_t i = place.block; i < min(place.block + FY_TILE_BLOCKS, place.piece_end); i++)
            layer.block_segment[i] = segment;
    }
}

static void point_tables(int segments) {
    fy_gpu_backward &b = layer.back;
    layer.ready.assign(segments + 2, 0);
    layer.gathered.assign(segments + 2, 0);
    layer.turn.assign(b.weight_tickets[0] + b.weight_tickets[1] + 2, 0);
    b.table.segment = layer.segment.data();
    b.table.first_segment = layer.first_segment.data();
    b.table.block_segment = layer.block_segment.data();
    b.table.ready = layer.ready.data();
    b.table.gathered = layer.gathered.data();
    b.table.turn = layer.turn.data();
}

/* x, g and u of saved blocks are in the context; those of macrobatch 0 may still be in the ring. */
static void leave_of_forward() {
    for (int e = 0; e < layer.call.experts; e++)
        for (int block = layer.first_block[e]; block < layer.first_block[e + 1]; block++) {
            bool saved = fy_is_saved(layer.back, block);
            if (fy_is_missing(layer.call, layer.back, block, layer.ringed)) continue;
            for (int r = 0; r < ROWS_OF_BLOCK; r++) {
                int row = block * ROWS_OF_BLOCK + r;
                (saved ? layer.x_context : layer.x_ring).row(row) = row;
            }
            for (int piece = 0; piece < layer.inner_pieces; piece++) {
                (saved ? layer.g_context : layer.g_ring).piece(block, piece) = block;
                (saved ? layer.u_context : layer.u_ring).piece(block, piece) = block;
            }
        }
    if (layer.back.remake_shared) return;
    for (int block = 0; block < layer.shared_blocks; block++)
        for (int piece = 0; piece < layer.shared_pieces; piece++)
            layer.g_shared.piece(block, piece) = layer.u_shared.piece(block, piece) = block;
}

static void make_maps() {
    auto map = [](const tag_memory *from) { return CUtensorMap{from, FY_BOX_BYTES, 1}; };
    fy_gpu_backward_maps &r = layer.back.routed, &s = layer.back.shared_expert;
    r.x[0] = map(&layer.x_ring), r.x[1] = map(&layer.x_context);
    r.g[0] = map(&layer.g_ring), r.g[1] = map(&layer.g_context);
    r.u[0] = map(&layer.u_ring), r.u[1] = map(&layer.u_context);
    r.dout = map(&layer.dout_ring);
    r.dg = map(&layer.dg_ring), r.du = map(&layer.du_ring), r.wh = map(&layer.wh_ring);
    s.x[0] = s.dout = map(nullptr);
    s.g[0] = map(&layer.g_shared), s.u[0] = map(&layer.u_shared);
    s.dg = map(&layer.dg_shared), s.du = map(&layer.du_shared), s.wh = map(&layer.wh_shared);
    for (fy_gpu_backward_maps *maps : {&r, &s}) maps->gate = maps->up = maps->down = map(nullptr);
}

void layer_lay_backward() {
    const fy_gpu_state &state = layer.state;
    draw_parts();
    int segments = lay_segments(), empty = 0;
    for (int e = 0; e < layer.call.experts; e++) empty += layer.first_block[e] == layer.first_block[e + 1];
    lay_tiles();
    point_tables(segments);
    fy_gpu_kept kept = {};
    kept.tokens = state.tokens;
    kept.blocks = state.blocks;
    kept.tiles = state.tiles;
    kept.macrobatches = state.macrobatches;
    fy_list_backward(layer.call, layer.back, kept, segments, empty, layer.ringed);
    for (fy_gpu_unit &unit : layer.unit)
        if (unit.kind != FY_WEIGHT) unit.by_piece = chance(50);
    if (layer.back_state.units >= 3 * layer.call.max_blocks + state.macrobatches + 8)
        return fail("more units than their table has room for");
    leave_of_forward();
    make_maps();
}
