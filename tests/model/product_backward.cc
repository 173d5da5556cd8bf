/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warpgroup of consumers of the backward, after role_product_backward.cuh and what it includes. Results are stored
 * late, at random times, but before their signal; the signal is held back until products of the next tile run, or the
 * block would wait.
 */
#include "cuda/role_choose_backward.cuh"
#include "cuda/role_load_backward.cuh"
#include "engine.h"
#include "kinds.h"
#include "layer.h"
#include "progress.h"
#include "random.h"
#include "ring_room.h"
#include "roles.h"

struct place_in_stages {
    int index;
    uint32_t parity;

    void next() {
        if (++index < FY_STAGES) return;
        index = 0;
        parity ^= 1;
    }
};

/* A tile's end that is not told yet. */
struct backward_signal {
    bool any = false;
    fy_task task;
    int block; /* of padded rows, of tokens */
    bool stored;
};

/* Where a block's pieces are: of the shared expert, in the context where it has them, in the ring. */
static int &piece_of(const fy_task &t, tag_memory &shared, tag_memory *context, tag_memory &ring, int block,
                     int piece) {
    if (t.shared) return shared.piece(block, piece);
    if (context && fy_is_saved(layer.back, block)) return context->piece(block, piece);
    return ring.piece(layer.ring_block(block), piece);
}

static void store_gate_up(const fy_task &t, int block) {
    int old = block - layer.call.ring_blocks;
    if (!t.shared && !fy_is_saved(layer.back, block) && old >= 0 && !is_graded(old))
        fail("g and u of block %d written over those of block %d, which is not graded", block, old);
    for (int piece = 2 * t.column; piece < min(2 * t.column + 2, layer.pieces(t.shared)); piece++) {
        piece_of(t, layer.g_shared, &layer.g_context, layer.g_ring, block, piece) = block;
        piece_of(t, layer.u_shared, &layer.u_context, layer.u_ring, block, piece) = block;
    }
}

static void store_gradient(const fy_task &t, int block) {
    if (!t.shared) {
        check_room(block, "gradients of h");
        layer.parts_ring.piece(layer.ring_block(block), t.column) = block;
    }
    for (int piece = 4 * t.column; piece < min(4 * t.column + 4, layer.pieces(t.shared)); piece++) {
        piece_of(t, layer.dg_shared, nullptr, layer.dg_ring, block, piece) = block;
        piece_of(t, layer.du_shared, nullptr, layer.du_ring, block, piece) = block;
        piece_of(t, layer.wh_shared, nullptr, layer.wh_ring, block, piece) = block;
    }
}

static void store(backward_signal &held) {
    if (held.stored) return;
    held.stored = true;
    int kind = fy_task_plain(held.task.kind);
    if (kind == FY_REMAKE) store_gate_up(held.task, held.block);
    if (kind == FY_GRAD) store_gradient(held.task, held.block);
}

static void send(backward_signal &held) {
    if (!held.any) return;
    store(held);
    held.any = false;
    bool shared = held.task.shared;
    int kind = fy_task_plain(held.task.kind), counter = held.block + (shared ? layer.call.max_blocks : 0);
    if (kind == FY_DX) {
        fy_fetch_add_acq_rel_gpu(&layer.call.table.sent[counter], 1);
    } else if (kind == FY_REMAKE) {
        fy_add_release_gpu(&layer.back.table.remade[counter], 1);
    } else {
        fy_add_release_gpu(&layer.call.table.made[counter], 1);
        fy_add_release_gpu(&layer.back.table.ready[shared ? 0 : layer.block_segment[counter]], 1);
    }
}

/* The first one, for words. */
static int row_of(const fy_task &t) { return t.kind == FY_WEIGHT ? t.block * ROWS_OF_BLOCK : t.row; }

static void expect(const char *what, int found, int wanted, const fy_task &t, int k) {
    if (found != wanted)
        fail("%s, row %d, column tile %d, step %d: %s is that of %d, not of %d", name_of_kind(t.kind), row_of(t),
             t.column, k, what, found, wanted);
}

static void expect_rows(const char *what, const uint8_t *box, int first, int rows, const fy_task &t, int k) {
    for (int r = 0; r < rows; r++) expect(what, tag_of_row(box, r), first + r, t, k);
}

/* A step of a weight gradient contracts over one block: rows of dout with w h', or dg or du with rows of x. */
static void check_weight(const fy_task &t, int group, int k, const uint8_t *a, const uint8_t *b) {
    bool down = t.which == FY_TASK_DOWN;
    const uint8_t *rows = down ? a : b, *pieces = down ? b : a;
    int block = t.block + k, piece = down ? 4 * t.column : 2 * t.m + group;
    if (!t.shared) expect_rows(down ? "dout" : "x", rows, block * ROWS_OF_BLOCK, ROWS_OF_BLOCK, t, k);
    if (piece < layer.pieces(t.shared)) expect(down ? "w h'" : "a gradient", tag_of_piece(pieces), block, t, k);
}

/* This warpgroup's part of a stage. `products`: stages with operands; behind them, of GRAD, those with g and u. */
static void check_stage(const fy_task &t, int group, int k, int products, uint8_t *shared, int stage) {
    const uint8_t *a = fy_stage_a(shared, stage) + group * FY_BOX_BYTES;
    int kind = fy_task_plain(t.kind), block = t.row / ROWS_OF_BLOCK + group, first = block * ROWS_OF_BLOCK;
    int rows = min(t.rows - group * ROWS_OF_BLOCK, (int)ROWS_OF_BLOCK);
    if (kind == FY_WEIGHT) {
        check_weight(t, group, k, a, fy_stage_b(shared, stage));
    } else if (kind == FY_DX) {
        expect("a gradient", tag_of_piece(a), block, t, k);
    } else if (k >= products) {
        if (4 * t.column + k - products >= layer.pieces(t.shared)) return;
        expect("g", tag_of_piece(a), block, t, k);
        expect("u", tag_of_piece(a + 2 * FY_BOX_BYTES), block, t, k);
    } else if (!t.shared) {
        expect_rows(kind == FY_GRAD ? "dout" : "x", a, first, rows, t, k);
    }
}

/* Open sums go from segment to segment of one expert; then another one may have their place. */
static void resume_sums(const fy_task &t, int group) {
    open_sums &open = progress_open(t.open, group);
    if (open.expert != t.matrix || !open.used) fail("expert %d goes on from open sums of %d", t.matrix, open.expert);
    open.used = false;
}

static void end_weight(const fy_task &t, int group) {
    if (!t.closes) {
        open_sums &open = progress_open(t.open, group);
        if (open.used) fail("expert %d leaves open sums over those of %d", t.matrix, open.expert);
        open = {t.matrix, true};
        step();
    }
    progress.weights[t.segment]++;
    if (t.resumes || !t.closes) fy_add_release_gpu(&layer.back.table.turn[t.open], 1);
    fy_add_release_gpu(&layer.back.table.gathered[t.segment], 1);
}

/* The products of a GRAD or DX tile are over. */
static void end_rows(const fy_task &t, int block) {
    int kind = fy_task_plain(t.kind);
    if (t.shared) return;
    if (kind == FY_GRAD) progress.graded[block]++;
    if (kind == FY_DX) progress.dx_made[block]++;
    if (kind != FY_DX || t.column > 0) return;
    for (int part = 0; part < layer.parts_ring.across; part++)
        expect("a part of dweights", layer.parts_ring.piece(layer.ring_block(block), part), block, t, part);
}

static void begin_tile(const fy_task &t) {
    say("begins %s, row %d, expert %d, column tile %d", name_of_kind(t.kind), row_of(t), t.matrix, t.column);
    if (t.kind == FY_WEIGHT)
        progress.begun[{t.kind, t.segment, t.which, t.m, t.column}]++;
    else
        progress.begun[{t.kind, t.counter, 0, 0, t.column}]++;
}

void product_backward_role(int number_of_block, int group) {
    if (layer.call.shared == 0) pull_backward_head(number_of_block, group);
    uint8_t *shared = block_memory(number_of_block);
    fy_backward_block *block = fy_backward_block_of(shared);
    backward_signal held;
    place_in_stages stage = {0, 0};
    for (;;) {
        if (!fy_barrier_test(&block->full[stage.index], stage.parity)) {
            send(held);
            fy_barrier_wait(&block->full[stage.index], stage.parity);
        }
        const fy_task t = block->task[block->first[stage.index]];
        if (t.kind == FY_LAST) break;
        if (group == 0) begin_tile(t);
        int kind = fy_task_plain(t.kind), products = kind == FY_DX ? 2 * t.depth : t.depth;
        int rows_block = t.row / ROWS_OF_BLOCK + group;
        bool has_rows = t.rows > group * ROWS_OF_BLOCK, active = has_rows && products > 0;
        if (active && kind == FY_WEIGHT && t.resumes) resume_sums(t, group);
        for (int r = 0; r < ROWS_OF_BLOCK && active && kind == FY_GRAD && !t.shared; r++)
            expect("a router weight", layer.weight_ring.row(layer.ring_block(rows_block) * ROWS_OF_BLOCK + r),
                   rows_block * ROWS_OF_BLOCK + r, t, -1);
        int last = -1; /* a stage is emptied when the step after it has begun */
        for (int k = 0; k < fy_stages_of(t); k++, stage.next()) {
            fy_barrier_wait(&block->full[stage.index], stage.parity);
            if (active) check_stage(t, group, k, products, shared, stage.index);
            if (active && k == min(2, products - 1)) send(held);
            if (!active) fy_barrier_arrive(&block->empty[stage.index]);
            if (last >= 0) fy_barrier_arrive(&block->empty[last]);
            if (active) last = stage.index;
        }
        if (last >= 0) fy_barrier_arrive(&block->empty[last]);
        if (!has_rows) {
            send(held);
        } else if (kind == FY_WEIGHT) {
            if (active) end_weight(t, group);
        } else {
            end_rows(t, rows_block);
            held.any = true;
            held.task = t;
            held.block = rows_block;
            held.stored = false;
            if (chance(50)) store(held);
        }
    }
    send(held);
}
