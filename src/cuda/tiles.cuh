/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row tiles as the place launch lays them, and the head of the walk: its first tiles, whose rows are pulled each for
 * itself, and which are put in another order where there are peers.
 */
#ifndef FERRY_CUDA_TILES_CUH
#define FERRY_CUDA_TILES_CUH

#include "cuda/role_schedule.cuh"
#include "rules/tile.h"

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

#endif
