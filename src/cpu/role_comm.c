/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communication worker does: whatever of pull, push and sum is ready, pulls first since they feed the products.
 * Compute workers join it when their tickets are done. No unit is taken before it is ready; inside one, a pull may
 * wait for a row that a pull taken earlier is about to read.
 */
#include "cpu/state.h"

static int finished(fy_call *call) {
    return atomic_load_explicit(&call->pulls_done, memory_order_acquire) >= call->steps &&
           atomic_load_explicit(&call->pushes_done, memory_order_acquire) >= call->steps &&
           atomic_load_explicit(&call->sums_done, memory_order_acquire) >= call->sum_units;
}

static int any_unit(fy_call *call, int worker, void *scratch) {
    int done = fy_role_pull(call, worker);
    if (done == 0) done = fy_role_push(call, worker);
    if (done == 0) done = fy_role_sum(call, worker, scratch);
    return done;
}

/* One turn of waiting, in the name of what is missed: another rank's result, or this rank's own products. */
static ferry_status turn(fy_call *call, fy_call_poll *poll) {
    int64_t missing = fy_role_sum_missing(call);
    int32_t id = missing < 0 ? -1 : call->schedule.ids[missing];
    int own_left = atomic_load_explicit(&call->pushes_done, memory_order_relaxed) < call->steps;
    poll->wait.phase = own_left ? FERRY_PHASE_PUSH : FERRY_PHASE_SUM;
    poll->wait.what = own_left ? "this rank's products" : "a slot's result";
    poll->wait.awaited_rank = own_left || id < 0 ? call->shape->rank : call->layer->expert_rank[id];
    if (!own_left)
        return fy_call_poll_turn(poll, call, call->sum_units,
                                 atomic_load_explicit(&call->sums_done, memory_order_relaxed));
    return fy_call_poll_turn(poll, call, call->steps, atomic_load_explicit(&call->pushes_done, memory_order_relaxed));
}

int fy_role_comm(fy_call *call, int worker, void *scratch) {
    fy_call_poll poll;
    int idle = 0;
    while (!finished(call)) {
        int done = any_unit(call, worker, scratch);
        if (done < 0 || fy_aborted(call->comm)) return -1;
        if (done > 0) {
            idle = 0;
            continue;
        }
        if (!idle) fy_call_poll_begin(&poll, call, FERRY_PHASE_SUM, call->shape->rank, "a slot's result");
        idle = 1;
        if (turn(call, &poll) != FERRY_OK) return -1;
    }
    return 0;
}
