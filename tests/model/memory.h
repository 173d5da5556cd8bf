/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory without numbers: in place of values there are tags that say whose value it would be. Two kinds: rows of
 * tokens, tagged with the padded row; and matrices in pieces of 64 rows x 64 columns, tagged with the block of 64
 * padded rows. A product whose operands have the tags that it wants would have had the right values.
 */
#ifndef FERRY_MODEL_MEMORY_H
#define FERRY_MODEL_MEMORY_H

#include <vector>

enum { NOTHING = -1, ROWS_OF_BLOCK = 64, COLUMNS_OF_PIECE = 64 };

struct tag_memory {
    int across = 0; /* pieces in a block's row of them; 0: rows of tokens */
    std::vector<int> tag;

    void clear_rows(int rows) {
        across = 0;
        tag.assign(rows, NOTHING);
    }
    void clear_pieces(int blocks, int pieces_across) {
        across = pieces_across;
        tag.assign((size_t)blocks * across, NOTHING);
    }
    int &row(int r) { return tag.at(r); }
    int &piece(int block, int column) { return tag.at((size_t)block * across + column); }

    /* What the copy engine finds; places outside are NOTHING. */
    int found(size_t at) const { return at < tag.size() ? tag[at] : NOTHING; }
    int found_row(int r) const { return found(r); }
    int found_piece(int block, int column) const {
        return column < across ? found((size_t)block * across + column) : NOTHING;
    }
};

#endif
