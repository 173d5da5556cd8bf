/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role push: combine (forward) and reverse-dispatch (backward). A unit is one step.
 * reads      result rows of the step in the ring; dweight partials in backward
 * writes     the owners' slots, and their dweights in backward
 * waits on   finished[step]
 * publishes  arrived[slot] of the owner, after its row; pushed[step] (the ring rows are free)
 */
#include "cpu/state.h"

#include <string.h>

/* dw of a row: its column tiles in ascending order. */
static float sum_tiles(const fy_call *call, int64_t row) {
    int64_t tiles = fy_tiles(call->shape->intermediate);
    const float *part = (const float *)fy_ring(call, call->state->layout.ring.dweight) +
                        fy_ring_row(row, call->shape->ring_rows) * tiles;
    float sum = part[0];
    for (int64_t t = 1; t < tiles; t++) sum += part[t];
    return sum;
}

static void push_row(fy_call *call, int64_t row) {
    const fy_layout *l = &call->state->layout;
    int64_t hidden = call->shape->hidden;
    fy_row to = call->schedule.row[row];
    uint16_t *slots = (uint16_t *)fy_peer(call, to.source, l->symmetric.slots);
    memcpy(slots + to.slot * hidden, fy_ring_row_at(call, row, l->ring.result, hidden),
           (size_t)hidden * sizeof(uint16_t));
    if (call->backward) ((float *)fy_peer(call, to.source, l->symmetric.dweights))[to.slot] = sum_tiles(call, row);
    _Atomic uint64_t *arrived = (_Atomic uint64_t *)fy_peer(call, to.source, l->symmetric.arrived);
    atomic_store_explicit(&arrived[to.slot], call->number, memory_order_release);
}

int fy_role_push(fy_call *call, int worker) {
    int64_t step = atomic_load_explicit(&call->next_push, memory_order_relaxed);
    if (step >= call->steps) return 0;
    fy_step *s = &call->step[step];
    if (atomic_load_explicit(&s->finished, memory_order_acquire) < s->finish_units) return 0;
    if (!atomic_compare_exchange_strong(&call->next_push, &step, step + 1)) return 1;
    const char *what = call->backward ? "reverse-dispatch" : "combine";
    if (fy_call_begin(call, worker, FERRY_PHASE_PUSH, step, what) != 0) return -1;
    int64_t bytes = call->shape->hidden * (int64_t)sizeof(uint16_t) + (call->backward ? (int64_t)sizeof(float) : 0);
    int64_t all = 0, remote = 0;
    for (int32_t i = s->first_piece; i < s->first_piece + s->pieces; i++) {
        const fy_piece *p = &call->piece[i];
        for (int64_t row = p->first; row < p->first + p->rows; row++) {
            push_row(call, row);
            all += bytes;
            if (call->schedule.row[row].source != call->shape->rank) remote += bytes;
        }
    }
    atomic_fetch_add_explicit(&call->bytes_push, all, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->bytes_push_remote, remote, memory_order_relaxed);
    fy_call_end(call, worker, FERRY_PHASE_PUSH, step, what);
    atomic_store_explicit(&s->pushed, 1, memory_order_release);
    atomic_fetch_add_explicit(&call->pushes_done, 1, memory_order_release);
    return 1;
}
