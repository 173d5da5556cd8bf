/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role pull: dispatch (forward) and reverse-combine (backward). A unit is one step.
 * reads      the owners' x or dout, and their router weights in backward
 * writes     rows of the step in the ring (x of saved rows: in the context)
 * waits on   made[before], done of segments of the step before (the ring rows are free), pulls of earlier macrobatches;
 *            inside the unit: pulled of an earlier step, for a leader that another worker is still reading
 * publishes  pulled[step]
 *
 * A token wanted by several rows of a macrobatch is read from its owner once, for the first of them (the leader); the
 * others copy it from there. Rows are taken interleaved over sources, each rank starting at its own successor.
 */
#include "cpu/state.h"

#include <string.h>

static const uint16_t *source_row(const fy_call *call, fy_row row, int dout) {
    const fy_layout *l = &call->state->layout;
    const fy_published *p = (fy_published *)fy_peer(call, row.source, l->symmetric.published) + call->parity;
    int64_t block = dout ? p->dout_block : p->x_block, offset = dout ? p->dout_offset : p->x_offset;
    int64_t token = row.slot / call->shape->slots, stride = dout ? p->dout_stride : p->x_stride;
    const unsigned char *base = fy_peer(call, row.source, dout ? l->symmetric.dout : l->symmetric.x);
    if (block >= 0) base = fy_symmetric_numbered(call->comm, block)->base[row.source] + offset;
    return (const uint16_t *)base + token * stride;
}

/* Where a row's token goes, and where its followers find it. */
static uint16_t *target_row(const fy_call *call, int64_t row, int dout) {
    const fy_layout *l = &call->state->layout;
    if (dout) return fy_ring_row_at(call, row, l->ring.dout, call->shape->hidden);
    return fy_row_at(call, row, l->context.x, l->ring.x, call->shape->hidden);
}

/* A follower's leader may belong to an earlier step that another worker is still pulling. */
static int await_leader(fy_call *call, int worker, int64_t step, int64_t leader) {
    int64_t block = leader / FY_BLOCK_ROWS - (int64_t)call->step[step].macrobatch * call->walk.ring_blocks;
    int64_t first = call->step[step].macro_first + block / call->walk.mini_blocks;
    if (first == step) return 0;
    return fy_call_wait(call, worker, &call->step[first].pulled, 1, FERRY_PHASE_PULL, step, "a token's first row") ==
                   FERRY_OK
               ? 0
               : -1;
}

typedef struct pull_counts {
    int64_t pulls, bytes, remote;
} pull_counts;

static int pull_row(fy_call *call, int worker, int64_t step, int64_t row, int dout, pull_counts *counts) {
    size_t bytes = (size_t)call->shape->hidden * sizeof(uint16_t);
    fy_row source = call->schedule.row[row];
    int64_t leader = call->schedule.leader[row];
    if (leader != row) {
        if (await_leader(call, worker, step, leader) != 0) return -1;
        memcpy(target_row(call, row, dout), target_row(call, leader, dout), bytes);
        return 0;
    }
    memcpy(target_row(call, row, dout), source_row(call, source, dout), bytes);
    counts->pulls++;
    counts->bytes += (int64_t)bytes;
    if (source.source != call->shape->rank) counts->remote += (int64_t)bytes;
    return 0;
}

/* The router weight travels with the dout row. */
static void pull_weight(fy_call *call, int64_t row, pull_counts *counts) {
    const fy_layout *l = &call->state->layout;
    fy_row source = call->schedule.row[row];
    float *to = (float *)fy_ring(call, l->ring.weight) + fy_ring_row(row, call->shape->ring_rows);
    *to = ((const float *)fy_peer(call, source.source, l->symmetric.weights))[source.slot];
    counts->bytes += (int64_t)sizeof(float);
    if (source.source != call->shape->rank) counts->remote += (int64_t)sizeof(float);
}

static int pull_one(fy_call *call, int worker, const fy_piece *p, int64_t row, pull_counts *counts) {
    if (!call->backward) return pull_row(call, worker, p->step, row, 0, counts);
    if (p->missing && pull_row(call, worker, p->step, row, 0, counts) != 0) return -1;
    pull_weight(call, row, counts);
    return pull_row(call, worker, p->step, row, 1, counts);
}

/* Leaders lie before their followers in a piece's order of rows, but not in the interleaved one: leaders first. */
static int pull_piece(fy_call *call, int worker, const fy_piece *p, int leaders, pull_counts *counts) {
    int nranks = call->shape->nranks;
    const int64_t *base = call->schedule.source_base + (int64_t)p->expert * (nranks + 1);
    int64_t first = call->schedule.first_block[p->expert] * FY_BLOCK_ROWS;
    int64_t begin = p->first - first, end = begin + p->rows, left = p->rows;
    for (int64_t i = 0; left > 0; i++) {
        for (int q = 0; q < nranks; q++) {
            int r = (call->shape->rank + 1 + q) % nranks;
            int64_t low = fy_most(base[r], begin), high = fy_least(base[r + 1], end);
            if (low + i >= high) continue;
            int64_t row = first + low + i;
            left--;
            if ((call->schedule.leader[row] == row) != leaders) continue;
            if (pull_one(call, worker, p, row, counts) != 0) return -1;
        }
    }
    return 0;
}

static int ready(fy_call *call, int64_t step) {
    const fy_step *s = &call->step[step];
    if (atomic_load_explicit(&call->pulls_done, memory_order_acquire) < s->macro_first) return 0;
    if (s->before < 0) return 1;
    fy_step *before = &call->step[s->before];
    if (atomic_load_explicit(&before->made, memory_order_acquire) < before->make_units) return 0;
    for (int32_t g = before->first_segment; call->backward && g < before->first_segment + before->segments; g++)
        if (atomic_load_explicit(&call->segment[g].done, memory_order_acquire) < call->segment[g].units) return 0;
    return 1;
}

int fy_role_pull(fy_call *call, int worker) {
    int64_t step = atomic_load_explicit(&call->next_pull, memory_order_relaxed);
    if (step >= call->steps || !ready(call, step)) return 0;
    if (!atomic_compare_exchange_strong(&call->next_pull, &step, step + 1)) return 1;
    const char *what = call->backward ? "reverse-combine" : "dispatch";
    if (fy_call_begin(call, worker, FERRY_PHASE_PULL, step, what) != 0) return -1;
    fy_step *s = &call->step[step];
    pull_counts counts = {0, 0, 0};
    for (int leaders = 1; leaders >= 0; leaders--)
        for (int32_t p = s->first_piece; p < s->first_piece + s->pieces; p++)
            if (pull_piece(call, worker, &call->piece[p], leaders, &counts) != 0) return -1;
    atomic_fetch_add_explicit(&call->pulls, counts.pulls, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->bytes_pull, counts.bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->bytes_pull_remote, counts.remote, memory_order_relaxed);
    fy_call_end(call, worker, FERRY_PHASE_PULL, step, what);
    atomic_store_explicit(&s->pulled, 1, memory_order_release);
    atomic_fetch_add_explicit(&call->pulls_done, 1, memory_order_release);
    return 1;
}
