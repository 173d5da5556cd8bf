/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role sum: weighted sums of own tokens. A unit is 16 tokens.
 * reads      own slots, the shared expert's rows, router weights
 * writes     out (forward), dx and dweights (backward)
 * waits on   arrived[slot] of every live slot of the unit, and the shared expert
 * publishes  sums_done
 *
 * Starts from the shared expert's row, then slots in ascending k; rounded to BF16 once.
 */
#include "cpu/state.h"

#include <string.h>

/* The token after a unit's last one. */
static int64_t end_of(const fy_call *call, int64_t unit) { return fy_least((unit + 1) * FY_SUM_TOKENS, call->tokens); }

/* A live slot of a unit that has not arrived, or -1. */
static int64_t first_missing(fy_call *call, int64_t unit) {
    const fy_shape *s = call->shape;
    _Atomic uint64_t *arrived = (_Atomic uint64_t *)fy_own(call, call->state->layout.symmetric.arrived);
    int64_t end = end_of(call, unit);
    for (int64_t i = unit * FY_SUM_TOKENS * s->slots; i < end * s->slots; i++)
        if (call->schedule.ids[i] >= 0 && atomic_load_explicit(&arrived[i], memory_order_acquire) != call->number)
            return i;
    return -1;
}

int64_t fy_role_sum_missing(fy_call *call) {
    int64_t unit = atomic_load_explicit(&call->next_sum, memory_order_relaxed);
    return unit < call->sum_units ? first_missing(call, unit) : -1;
}

static int ready(fy_call *call, int64_t unit) {
    if (atomic_load_explicit(&call->shared_finished, memory_order_acquire) < call->shared_finish_units) return 0;
    return first_missing(call, unit) < 0;
}

static void sum_token(fy_call *call, int64_t token, float *acc) {
    const fy_shape *s = call->shape;
    const fy_layout *l = &call->state->layout;
    const fy_kernels *k = call->kernels;
    const uint16_t *shared = (const uint16_t *)fy_table(call, l->shared.result) + token * s->hidden;
    const uint16_t *slots = (const uint16_t *)fy_own(call, l->symmetric.slots);
    const float *dw = (const float *)fy_own(call, l->symmetric.dweights);
    if (s->shared > 0)
        k->widen_row(acc, shared, s->hidden);
    else
        memset(acc, 0, (size_t)s->hidden * sizeof *acc);
    for (int64_t i = token * s->slots; i < (token + 1) * s->slots; i++) {
        int live = call->schedule.ids[i] >= 0;
        if (live && call->backward) k->add_row(acc, slots + i * s->hidden, s->hidden);
        if (live && !call->backward)
            k->weighted_add_row(acc, slots + i * s->hidden, s->hidden, call->schedule.weights[i]);
        if (call->backward && call->dweights) call->dweights[i] = live ? dw[i] : 0;
    }
    k->round_row(call->out + token * call->out_stride, acc, s->hidden);
}

int fy_role_sum(fy_call *call, int worker, void *scratch) {
    int64_t unit = atomic_load_explicit(&call->next_sum, memory_order_relaxed);
    if (unit >= call->sum_units || !ready(call, unit)) return 0;
    if (!atomic_compare_exchange_strong(&call->next_sum, &unit, unit + 1)) return 1;
    const char *what = call->backward ? "sum of dx" : "weighted sum";
    if (fy_call_begin(call, worker, FERRY_PHASE_SUM, -1, what) != 0) return -1;
    int64_t end = end_of(call, unit);
    for (int64_t t = unit * FY_SUM_TOKENS; t < end; t++) sum_token(call, t, scratch);
    int64_t rows = (end - unit * FY_SUM_TOKENS) * (call->shape->slots + 1 + (call->shape->shared > 0));
    atomic_fetch_add_explicit(&call->bytes_sum, rows * call->shape->hidden * (int64_t)sizeof(uint16_t),
                              memory_order_relaxed);
    fy_call_end(call, worker, FERRY_PHASE_SUM, -1, what);
    atomic_fetch_add_explicit(&call->sums_done, 1, memory_order_release);
    return 1;
}
