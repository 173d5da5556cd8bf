/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles in walk order: macrobatches from the last to the first, of each its experts ascending, of each of these (a
 * piece) tiles of two blocks. In a sorted head come first the tiles that have no rows of peers; pieces are then what is
 * alike and of one expert.
 */
#include "checks.h"

#include "rules/ring.h"
#include "scheduler.h"

#include <algorithm>

struct expected_tile {
    int expert, row, rows, piece_first, piece_count;
    bool far; /* rows of peers */
};

static bool has_rows_of_peers(const made_up_rank &q, int row, int rows) {
    for (int i = row; i < row + rows; i++)
        if (q.source[i].rank != q.call.rank) return true;
    return false;
}

/* Blocks [begin, end) of an expert, all of one macrobatch. */
static void add_piece(const made_up_rank &q, int expert, int begin, int end, std::vector<expected_tile> &tiles) {
    int last = q.first_block[expert] * FY_BLOCK_ROWS + q.rows[expert], piece_first = (int)tiles.size();
    for (int b = begin; b < end; b += 2) {
        int row = b * FY_BLOCK_ROWS, rows = std::min({FY_TILE_M + 0, last - row, (end - b) * FY_BLOCK_ROWS});
        tiles.push_back({expert, row, rows, piece_first, (end - begin + 1) / 2, has_rows_of_peers(q, row, rows)});
    }
}

static void sort_head(std::vector<expected_tile> &tiles, int head) {
    auto end = tiles.begin() + head;
    std::stable_partition(tiles.begin(), end, [](const expected_tile &t) { return !t.far; });
    for (int i = 0; i < head; i++) {
        auto alike = [&](const expected_tile &t) { return t.expert == tiles[i].expert && t.far == tiles[i].far; };
        tiles[i].piece_first = (int)(std::find_if(tiles.begin(), end, alike) - tiles.begin());
        tiles[i].piece_count = (int)std::count_if(tiles.begin(), end, alike);
    }
}

static std::vector<expected_tile> expected_tiles(const made_up_rank &q, int *head) {
    const fy_gpu_call &c = q.call;
    std::vector<expected_tile> tiles;
    *head = 0;
    for (int m = q.state.macrobatches - 1; m >= 0; m--) {
        int begin = m * c.ring_blocks, end = begin + c.ring_blocks;
        for (int l = 0; l < c.local_experts; l++)
            add_piece(q, l, std::max(begin, q.first_block[l]), std::min(end, q.first_block[l + 1]), tiles);
        if (m == q.state.macrobatches - 1) *head = std::min(c.all_head_tiles, (int)tiles.size());
    }
    if (layer.ranks > 1 && c.all_head_tiles <= FY_HEAD_SORTED) sort_head(tiles, *head);
    return tiles;
}

/* The head's rows are known by two numbers. */
static void check_head(const made_up_rank &q, int head) {
    const fy_gpu_call &c = q.call;
    const fy_gpu_state &s = q.state;
    CHECK(s.all_head_tiles == head && s.head_tiles == std::min(c.head_tiles, head), c.rank,
          "the head has %d and %d tiles, not %d", s.head_tiles, s.all_head_tiles, head);
    for (int t = 0; t < s.tiles; t++) {
        int row = q.tile[t].row;
        CHECK((t < head) == (row >= s.head_first && row < s.head_end), c.rank,
              "rows [%d, %d) are the head's %d tiles, but tile %d begins with row %d", s.head_first, s.head_end, head,
              t, row);
    }
}

void check_tiles(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    int macrobatches = (int)fy_divide_up(q.state.blocks, c.ring_blocks), head;
    CHECK(q.state.macrobatches == macrobatches, c.rank, "%d macrobatches, not %d", q.state.macrobatches, macrobatches);
    std::vector<expected_tile> tiles = expected_tiles(q, &head);
    CHECK(q.state.tiles == (int)tiles.size(), c.rank, "%d tiles, not %d", q.state.tiles, (int)tiles.size());
    for (int t = 0; t < q.state.tiles; t++) {
        const expected_tile &e = tiles[t];
        const fy_gpu_tile &s = q.tile[t];
        CHECK(s.expert == e.expert && s.row == e.row && s.rows == e.rows, c.rank,
              "tile %d: expert %d, %d rows from %d, not expert %d, %d rows from %d", t, s.expert, s.rows, s.row,
              e.expert, e.rows, e.row);
        CHECK(s.piece_first == e.piece_first && s.piece_count == e.piece_count, c.rank,
              "tile %d: piece of %d tiles from %d, not of %d from %d", t, s.piece_count, s.piece_first, e.piece_count,
              e.piece_first);
    }
    int last = (int)q.tile.size() - 1;
    CHECK(q.tile[last].expert == untouched<int32_t>(), c.rank, "tile %d behind all is written", last);
    check_head(q, head);
}
