/* SPDX-License-Identifier: Apache-2.0 */
/* The backward's rule of the ring: what is written for a block takes the place of the block one ring before it, of
 * which nothing may be wanted any more. */
#ifndef FERRY_MODEL_RING_ROOM_H
#define FERRY_MODEL_RING_ROOM_H

#include "cuda/block_backward.cuh"
#include "layer.h"
#include "progress.h"
#include "scheduler.h"

inline bool is_graded(int block) { return progress.graded[block] == fy_parts(layer.call.intermediate, FY_TILE_N); }

inline void check_room(int block, const char *what) {
    int old = block - layer.call.ring_blocks;
    if (old < 0) return;
    if (!is_graded(old)) fail("%s of block %d, but block %d still has tiles of GRAD to come", what, block, old);
    if (layer.data && progress.dx_made[old] != fy_parts(layer.call.hidden, FY_TILE_N))
        fail("%s of block %d, but block %d still has tiles of DX to come", what, block, old);
    if (layer.weight && progress.weights[layer.block_segment[old]] != 2 * layer.back.weight_tickets[0])
        fail("%s of block %d, but weight gradients of block %d's expert are still to come", what, block, old);
}

#endif
