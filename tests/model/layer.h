/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The made-up layer of a case: a small random shape and routing of one rank, and the tables that the device code finds
 * in a call, laid out as the schedule's launches lay them out. What one thread of the device does there is the real
 * code (units, what they need, tiles, places); what a warp or block does together is written again.
 */
#ifndef FERRY_MODEL_LAYER_H
#define FERRY_MODEL_LAYER_H

#include "cuda/backward.h"
#include "cuda/call.h"
#include "memory.h"

#include <string>
#include <vector>

struct made_up_layer {
    bool backward;
    bool cut;          /* few experts over many macrobatches */
    bool chains;       /* of those a backward whose chains of weight gradients have links close together */
    bool keep;         /* a forward with a context */
    bool data, weight; /* parts of a backward */
    bool ringed;       /* a backward that finds the forward's macrobatch 0 in the ring */
    int inner_pieces, shared_pieces; /* 64-column pieces of the intermediate size, of the shared expert's */
    int shared_blocks;               /* of all tokens */
    std::vector<int> rows;           /* of each expert */

    /* What the kernels are told, and the numbers that they share. */
    fy_gpu_call call;
    fy_gpu_backward back;
    fy_gpu_state state;
    fy_gpu_backward_state back_state;
    fy_gpu_page page;

    /* What the tables of `call` and `back` point to. */
    std::vector<int32_t> first_block, base, first_tile, macro_tile, slot_row, block_segment, first_segment;
    std::vector<fy_gpu_tile> tile;
    std::vector<fy_gpu_unit> unit;
    std::vector<fy_gpu_source> source;
    std::vector<fy_gpu_segment> segment;
    std::vector<uint32_t> pulled, made, sent, remade, ready, gathered, turn;
    uint8_t side[FY_GPU_MAX_SMS];

    /* Rings, whose block is a padded block modulo the ring's. */
    tag_memory x_ring, dout_ring, weight_ring, parts_ring;
    tag_memory h_ring, g_ring, u_ring, dg_ring, du_ring, wh_ring; /* wh: w h', in the forward's h ring */
    /* The context, and the shared expert's, whose block is a padded block, a block of tokens. */
    tag_memory x_context, g_context, u_context;
    tag_memory h_shared, g_shared, u_shared, dg_shared, du_shared, wh_shared;

    int units() const { return backward ? back_state.units : state.units; }
    int ring_block(int block) const { return block % call.ring_blocks; }
    int ring_row(int row) const { return row % (call.ring_blocks * ROWS_OF_BLOCK); }
    int pieces(bool shared) const { return shared ? shared_pieces : inner_pieces; }
};

extern made_up_layer layer;

void layer_draw();         /* shape, routing, rings: of both directions */
void layer_lay_forward();  /* tickets, tiles and maps of a forward */
void layer_lay_backward(); /* those of a backward, and what its forward has left */
std::string layer_describe();

#endif
