/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work lists of a call, built from the schedule: steps, pieces, segments, and groups of tickets. A ticket depends
 * only on earlier tickets and on pulls and pushes of earlier steps, so any number of workers makes progress.
 */
#include "cpu/state.h"

static int64_t tiles_of_rows(int64_t rows) { return fy_divide_up(rows, FY_TILE_ROWS); }

/* The local expert whose segment holds a block: the last one that begins at or before it and is not empty. */
static int64_t expert_of_block(const fy_call *call, int64_t block) {
    int64_t low = 0, high = call->shape->local_experts;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (call->schedule.first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Whether a piece's x, g, u are in the context; in backward, whether they are neither there nor in the ring. */
static void mark_source(fy_call *call, fy_piece *p) {
    int ringed = call->backward && call->state->ring_forward == call->context->forward &&
                 fy_macrobatch_of_row(p->first, call->shape->ring_rows) == 0;
    p->saved = (int8_t)fy_is_saved(call, p->first);
    p->missing = call->backward && !p->saved && !ringed;
}

static void build_pieces(fy_call *call, int64_t step, fy_step_place place) {
    int64_t saved_block = call->context ? call->shape->context_rows / FY_BLOCK_ROWS : 0;
    const int64_t *first_block = call->schedule.first_block;
    for (int64_t block = place.first_block; block < place.end_block;) {
        int64_t e = expert_of_block(call, block), end = first_block[e + 1];
        if (end > place.end_block) end = place.end_block;
        if (block < saved_block && end > saved_block) end = saved_block;
        int64_t expert_end = first_block[e] * FY_BLOCK_ROWS + call->schedule.rows[e], last = end * FY_BLOCK_ROWS;
        if (last > expert_end) last = expert_end;
        fy_piece *p = &call->piece[call->pieces++];
        *p = (fy_piece){.first = block * FY_BLOCK_ROWS, .expert = (int32_t)e, .step = (int32_t)step};
        p->rows = (int32_t)(last - p->first);
        mark_source(call, p);
        block = end;
    }
}

static void build_steps(fy_call *call) {
    call->pieces = 0;
    for (int64_t i = 0; i < call->steps; i++) {
        fy_step_place place = fy_walk_place(call->walk, i);
        fy_step *s = &call->step[i];
        *s = (fy_step){.macrobatch = (int32_t)place.macrobatch, .first_piece = (int32_t)call->pieces};
        s->before = (int32_t)fy_walk_before(call->walk, i);
        s->macro_first = (int32_t)(i - place.minibatch);
        build_pieces(call, i, place);
        s->pieces = (int32_t)call->pieces - s->first_piece;
    }
}

static void add_group(fy_call *call, fy_work work, int64_t index, int64_t row_tiles, int64_t column_tiles) {
    call->group[call->groups++] =
        (fy_group){work, (int32_t)index, call->tickets, (int32_t)row_tiles, (int32_t)column_tiles};
    call->tickets += row_tiles * column_tiles;
}

/* One product over every piece of a step; returns its units. */
static uint32_t add_step(fy_call *call, fy_work work, int64_t step, int64_t columns) {
    const fy_step *s = &call->step[step];
    int64_t before = call->tickets;
    for (int64_t p = s->first_piece; p < s->first_piece + s->pieces; p++)
        if (work != FY_WORK_REMAKE || call->piece[p].missing)
            add_group(call, work, p, tiles_of_rows(call->piece[p].rows), fy_tiles(columns));
    return (uint32_t)(call->tickets - before);
}

static uint32_t add_shared(fy_call *call, fy_work work, int64_t columns) {
    int64_t before = call->tickets;
    add_group(call, work, -1, tiles_of_rows(call->tokens), fy_tiles(columns));
    return (uint32_t)(call->tickets - before);
}

/* Weight-gradient tiles of a matrix pair: as many as the wanted gradients have. */
static int64_t weight_tiles(const fy_call *call, int64_t width, int shared) {
    const ferry_gradients *g = call->grads;
    int count = shared ? fy_present(&g->shared_gate.to) + fy_present(&g->shared_up.to) + fy_present(&g->shared_down.to)
                       : fy_present(&g->gate.to) + fy_present(&g->up.to) + fy_present(&g->down.to);
    return count * fy_tiles(width) * fy_tiles(call->shape->hidden);
}

static void add_segment(fy_call *call, int64_t index) {
    fy_segment *g = &call->segment[index];
    g->units = (uint32_t)weight_tiles(call, call->shape->intermediate, 0);
    if (g->units > 0) add_group(call, FY_WORK_WEIGHT, index, g->units, 1);
}

/* Segments in walk order: every expert's, cut at macrobatch ends; empty experts have one too. There is
 * one area of open sums, so who uses it waits for the one that used it before, also when that was another expert. */
static void build_segments(fy_call *call) {
    int64_t piece = 0;
    int32_t last_open = -1;
    call->segments = 0;
    for (int64_t i = 0; i < call->steps; i++) call->step[i].first_segment = -1;
    for (int64_t e = 0; e < call->shape->local_experts; e++) {
        int64_t end = piece;
        while (end < call->pieces && call->piece[end].expert == e) end++;
        int8_t opens = 0;
        do {
            fy_segment *g = &call->segment[call->segments];
            *g = (fy_segment){.expert = (int32_t)e, .first_piece = (int32_t)piece, .before = -1, .opens = opens};
            if (piece < end) {
                int32_t macro = call->step[call->piece[piece].step].macrobatch;
                g->first_step = call->piece[piece].step;
                while (piece < end && call->step[call->piece[piece].step].macrobatch == macro) piece++;
                g->last_step = call->piece[piece - 1].step;
                for (int32_t s = g->first_step; s <= g->last_step; s++) {
                    if (call->step[s].first_segment < 0) call->step[s].first_segment = (int32_t)call->segments;
                    call->step[s].segments = (int32_t)call->segments + 1 - call->step[s].first_segment;
                }
            } else {
                g->first_step = g->last_step = -1;
            }
            g->pieces = (int32_t)piece - g->first_piece;
            g->closes = piece == end;
            if (g->opens || !g->closes) {
                g->before = last_open;
                last_open = (int32_t)call->segments;
            }
            opens = 1;
            call->segments++;
        } while (piece < end);
    }
}

/* make(0), then make(s) and finish(s - 1) in the order that the ring allows, at the end finish(last). */
static void add_forward(fy_call *call) {
    const fy_shape *s = call->shape;
    if (s->shared > 0 && call->tokens > 0) {
        call->shared_make_units = add_shared(call, FY_WORK_MAKE, s->shared);
        call->shared_finish_units = add_shared(call, FY_WORK_DOWN, s->hidden);
    }
    for (int64_t i = 0; i <= call->steps; i++) {
        int make_first = i < call->steps && i > 0 && fy_walk_make_first(call->walk, i);
        if (make_first) call->step[i].make_units = add_step(call, FY_WORK_MAKE, i, s->intermediate);
        if (i > 0) call->step[i - 1].finish_units = add_step(call, FY_WORK_DOWN, i - 1, s->hidden);
        if (!make_first && i < call->steps) call->step[i].make_units = add_step(call, FY_WORK_MAKE, i, s->intermediate);
    }
}

static void add_grad(fy_call *call, int64_t step) {
    int64_t width = call->shape->intermediate;
    call->step[step].remake_units = add_step(call, FY_WORK_REMAKE, step, width);
    call->step[step].make_units = add_step(call, FY_WORK_GRAD, step, width);
}

/* grad(s) before dx(s - 1), so that dx rarely waits - except where a macrobatch begins: its pulls wait for the weight
 * gradients of the one before, and those for nothing later than dx(s - 1). */
static void add_backward(fy_call *call) {
    const fy_shape *s = call->shape;
    int data = call->parts & FERRY_BACKWARD_DATA, weight = call->parts & FERRY_BACKWARD_WEIGHT;
    int64_t next_segment = 0;
    if (s->shared > 0 && call->tokens > 0) {
        if (call->remake_shared) call->shared_remake_units = add_shared(call, FY_WORK_REMAKE, s->shared);
        call->shared_make_units = add_shared(call, FY_WORK_GRAD, s->shared);
        if (data) call->shared_finish_units = add_shared(call, FY_WORK_DX, s->hidden);
    }
    for (int64_t i = 0; i <= call->steps; i++) {
        int grad_first = i > 0 && i < call->steps && call->step[i].macrobatch == call->step[i - 1].macrobatch;
        if (grad_first) add_grad(call, i);
        if (i > 0 && data) call->step[i - 1].finish_units = add_step(call, FY_WORK_DX, i - 1, s->hidden);
        while (i > 0 && weight && next_segment < call->segments && call->segment[next_segment].last_step < i)
            add_segment(call, next_segment++);
        if (!grad_first && i < call->steps) add_grad(call, i);
    }
    while (weight && next_segment < call->segments) add_segment(call, next_segment++);
    if (weight && s->shared > 0) {
        call->shared_segment.units = (uint32_t)weight_tiles(call, s->shared, 1);
        if (call->shared_segment.units > 0) add_group(call, FY_WORK_WEIGHT, -1, call->shared_segment.units, 1);
    }
}

void fy_build_work(fy_call *call) {
    const fy_layout *l = &call->state->layout;
    const fy_shape *s = call->shape;
    call->step = (fy_step *)fy_table(call, l->table.steps);
    call->piece = (fy_piece *)fy_table(call, l->table.pieces);
    call->segment = (fy_segment *)fy_table(call, l->table.segments);
    call->group = (fy_group *)fy_table(call, l->table.groups);
    call->walk = (fy_walk){.blocks = s->local_experts ? call->schedule.first_block[s->local_experts] : 0,
                           .ring_blocks = s->ring_rows / FY_BLOCK_ROWS,
                           .mini_blocks = s->minibatch_rows / FY_BLOCK_ROWS,
                           .backward = call->backward};
    call->steps = fy_walk_steps(call->walk);
    call->shared = (fy_piece){.rows = (int32_t)call->tokens, .expert = -1, .step = -1, .saved = !call->remake_shared};
    call->shared_segment = (fy_segment){.expert = -1, .before = -1, .closes = 1};
    build_steps(call);
    if (call->backward) {
        build_segments(call);
        add_backward(call);
    } else {
        add_forward(call);
    }
}
