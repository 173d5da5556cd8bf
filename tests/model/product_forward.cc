/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warpgroup of consumers of the forward, after role_product.cuh. Results are stored late, at random times, but before
 * their signal; the signal is held back until products of the next tile run, or the block would wait.
 */
#include "cuda/role_load.cuh"
#include "engine.h"
#include "kinds.h"
#include "layer.h"
#include "progress.h"
#include "random.h"
#include "roles.h"

/* A tile's end that is not told yet. */
struct forward_signal {
    int kind = FY_END; /* FY_END: there is none */
    int counter, column, block;
    bool stored;
};

/* h of a tile: over that of another block only once all products that read it are over. */
static void store_h(forward_signal &held) {
    if (held.stored) return;
    held.stored = true;
    bool shared = fy_is_shared(held.kind);
    for (int piece = 2 * held.column; piece < min(2 * held.column + 2, layer.pieces(shared)); piece++) {
        int &h =
            shared ? layer.h_shared.piece(held.block, piece) : layer.h_ring.piece(layer.ring_block(held.block), piece);
        if (!shared && h != NOTHING && h != held.block && progress.h_read[h] != fy_columns_of(layer.call, FY_FINISH))
            fail("h of block %d written over that of block %d, which %d tiles have read", held.block, h,
                 progress.h_read[h]);
        h = held.block;
    }
}

static void send(forward_signal &held) {
    if (held.kind == FY_END) return;
    if (fy_is_make(held.kind)) {
        store_h(held);
        fy_add_release_gpu(&layer.call.table.made[held.counter], 1);
    } else {
        fy_fetch_add_acq_rel_gpu(&layer.call.table.sent[held.counter], 1);
    }
    held.kind = FY_END;
}

/* This warpgroup's 64 rows of A, one step along the contraction. */
static void check_operand(const fy_work &w, int group, int k, const uint8_t *a) {
    int block = w.row / ROWS_OF_BLOCK + group;
    if (w.kind == FY_MAKE) {
        for (int row = block * ROWS_OF_BLOCK, r = 0; r < ROWS_OF_BLOCK; r++)
            if (tag_of_row(a, r) != row + r)
                fail("make of row %d, step %d: x is that of row %d", row + r, k, tag_of_row(a, r));
    } else if (!fy_is_make(w.kind) && tag_of_piece(a) != block) {
        fail("finish of block %d, step %d: h is that of block %d", block, k, tag_of_piece(a));
    }
}

void product_forward_role(int number_of_block, int group) {
    pull_forward_head(number_of_block, group);
    uint8_t *shared = block_memory(number_of_block);
    fy_block *block = fy_block_of(shared);
    forward_signal held;
    int stage = 0;
    uint32_t parity = 0;
    for (int number = 0;; number++) {
        if (!fy_barrier_test(&block->full[stage], parity)) {
            send(held);
            fy_barrier_wait(&block->full[stage], parity);
        }
        const fy_work w = block->work[number % FY_WORKS];
        if (w.kind == FY_END) break;
        bool active = group * ROWS_OF_BLOCK < w.rows;
        if (group == 0) {
            say("begins %s, row %d, column tile %d", name_of_kind(w.kind), w.row, w.column);
            progress.begun[{w.kind, w.counter, 0, 0, w.column}]++;
        }
        int last = -1; /* a stage is emptied when the step after it has begun */
        for (int k = 0; k < w.depth; k++) {
            fy_barrier_wait(&block->full[stage], parity);
            if (active) check_operand(w, group, k, fy_stage_a(shared, stage) + group * (FY_A_BYTES / 2));
            if (active && k == min(2, w.depth - 1)) send(held);
            if (!active) fy_barrier_arrive(&block->empty[stage]);
            if (last >= 0) fy_barrier_arrive(&block->empty[last]);
            if (active) last = stage;
            if (++stage == FY_STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        if (!active) {
            send(held);
            continue;
        }
        fy_barrier_arrive(&block->empty[last]);
        if (w.kind == FY_MAKE) progress.x_read[w.counter + group]++;
        if (w.kind == FY_FINISH) progress.h_read[w.counter + group]++;
        held = {w.kind, w.counter + group, w.column, w.row / ROWS_OF_BLOCK + group, false};
        if (fy_is_make(w.kind) && chance(50)) store_h(held);
    }
    send(held);
}
