/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a call walks its minibatches. Forward takes macrobatches from the last to the first, backward
 * from the first to the last; within a macrobatch blocks ascend. A step is one minibatch, numbered in walk order.
 * Minibatch j of any macrobatch uses the same part of the ring.
 */
#ifndef FERRY_RULES_WALK_H
#define FERRY_RULES_WALK_H

#include "rules/ring.h"

typedef struct fy_walk {
    int64_t blocks;      /* of this rank in this call */
    int64_t ring_blocks; /* >= 1 */
    int64_t mini_blocks; /* 1 .. ring_blocks */
    int backward;
} fy_walk;

typedef struct fy_step_place {
    int64_t macrobatch, minibatch;
    int64_t first_block, end_block;
} fy_step_place;

FY_RULE int64_t fy_walk_macrobatches(fy_walk w) { return fy_divide_up(w.blocks, w.ring_blocks); }

/* Minibatches of a macrobatch that fills the ring. */
FY_RULE int64_t fy_walk_full(fy_walk w) { return fy_divide_up(w.ring_blocks, w.mini_blocks); }

/* Minibatches of the last macrobatch, which may be shorter. */
FY_RULE int64_t fy_walk_last(fy_walk w) {
    int64_t macros = fy_walk_macrobatches(w);
    return macros == 0 ? 0 : fy_divide_up(w.blocks - (macros - 1) * w.ring_blocks, w.mini_blocks);
}

FY_RULE int64_t fy_walk_steps(fy_walk w) {
    int64_t macros = fy_walk_macrobatches(w);
    return macros == 0 ? 0 : (macros - 1) * fy_walk_full(w) + fy_walk_last(w);
}

/* The step of a minibatch, or -1 when that macrobatch or minibatch does not exist. */
FY_RULE int64_t fy_walk_step_of(fy_walk w, int64_t macrobatch, int64_t minibatch) {
    int64_t macros = fy_walk_macrobatches(w), full = fy_walk_full(w), last = fy_walk_last(w);
    if (macrobatch < 0 || macrobatch >= macros) return -1;
    if (minibatch >= (macrobatch == macros - 1 ? last : full)) return -1;
    if (w.backward) return macrobatch * full + minibatch;
    if (macrobatch == macros - 1) return minibatch;
    return last + (macros - 2 - macrobatch) * full + minibatch;
}

FY_RULE fy_step_place fy_walk_place(fy_walk w, int64_t step) {
    fy_step_place p;
    int64_t macros = fy_walk_macrobatches(w), full = fy_walk_full(w), last = fy_walk_last(w);
    if (w.backward) {
        p.macrobatch = step / full;
        p.minibatch = step % full;
    } else if (step < last) {
        p.macrobatch = macros - 1;
        p.minibatch = step;
    } else {
        p.macrobatch = macros - 2 - (step - last) / full;
        p.minibatch = (step - last) % full;
    }
    int64_t macro_end = (p.macrobatch + 1) * w.ring_blocks;
    if (macro_end > w.blocks) macro_end = w.blocks;
    p.first_block = p.macrobatch * w.ring_blocks + p.minibatch * w.mini_blocks;
    p.end_block = p.first_block + w.mini_blocks;
    if (p.end_block > macro_end) p.end_block = macro_end;
    return p;
}

/* The step that used this step's part of the ring before it in this call, or -1. */
FY_RULE int64_t fy_walk_before(fy_walk w, int64_t step) {
    fy_step_place p = fy_walk_place(w, step);
    return fy_walk_step_of(w, p.macrobatch + (w.backward ? -1 : 1), p.minibatch);
}

/*
 * Two products of a step, the second reading what the first made: "make" of the next step is taken before "finish"
 * of this one, so that a finish rarely waits - except where the next step's make needs this step's part of the ring.
 */
FY_RULE int fy_walk_make_first(fy_walk w, int64_t next_step) { return fy_walk_before(w, next_step) != next_step - 1; }

#endif
