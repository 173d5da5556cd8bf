/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy engine of each block: a worker that carries out the copies which the loading thread has ordered, late and in
 * any order, and then tells the stage's barrier. It reads the tags at the moment of the copy: rows that were
 * overwritten too early or are not there yet show at the products.
 */
#ifndef FERRY_MODEL_ENGINE_H
#define FERRY_MODEL_ENGINE_H

#include <cuda.h>

#include <cstdint>

struct engine_copy {
    const CUtensorMap *map;
    uint8_t *to;
    uint64_t *full;
    int column, row;
};

void engine_clear(int blocks);
void engine_order(const engine_copy &copy); /* to the engine of the current block */
void engine_role(int block, int);

/* Tags that a copy has left in a stage: of row `r` of a box, of the piece in it. */
inline int tag_of_row(const uint8_t *box, int r) { return ((const int *)box)[r]; }
inline int tag_of_piece(const uint8_t *box) { return ((const int *)box)[0]; }

#endif
