/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting inside a call: bounded by the progress deadline, which starts anew whenever any rank finishes a unit. */
#include "cpu/state.h"

#include <time.h>

static _Atomic uint64_t *progress_of(const fy_call *call, int rank) {
    return (_Atomic uint64_t *)fy_peer(call, rank, call->state->layout.symmetric.progress);
}

/* Changes with every unit that any rank finishes. */
static uint64_t progress_sum(const fy_call *call) {
    uint64_t sum = 0;
    for (int r = 0; r < call->shape->nranks; r++)
        sum += atomic_load_explicit(progress_of(call, r), memory_order_relaxed);
    return sum;
}

static int tell(fy_call *call, int worker, ferry_phase phase, int begin, int wait, int64_t step, const char *what) {
    const ferry_observer *o = &call->comm->config.observer;
    if (o->event == NULL) return 0;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ferry_event e = {.phase = phase,
                     .begin = begin,
                     .wait = wait,
                     .backward = call->backward,
                     .rank = call->shape->rank,
                     .worker = worker,
                     .macrobatch = step < 0 ? -1 : call->step[step].macrobatch,
                     .step = (int)step,
                     .what = what,
                     .time_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec};
    return o->event(o->user, &e);
}

int fy_call_begin(fy_call *call, int worker, ferry_phase phase, int64_t step, const char *what) {
    return tell(call, worker, phase, 1, 0, step, what);
}

void fy_call_end(fy_call *call, int worker, ferry_phase phase, int64_t step, const char *what) {
    atomic_fetch_add_explicit(progress_of(call, call->shape->rank), 1, memory_order_relaxed);
    tell(call, worker, phase, 0, 0, step, what);
}

void fy_call_poll_begin(fy_call_poll *poll, fy_call *call, ferry_phase phase, int awaited_rank, const char *what) {
    poll->progress = progress_sum(call);
    fy_wait_begin(&poll->wait, call->comm, phase, awaited_rank, what, call->comm->config.progress_timeout_s);
}

ferry_status fy_call_poll_turn(fy_call_poll *poll, fy_call *call, int64_t expected, int64_t seen) {
    uint64_t now = progress_sum(call);
    if (now != poll->progress) {
        int spins = poll->wait.spins;
        fy_call_poll_begin(poll, call, poll->wait.phase, poll->wait.awaited_rank, poll->wait.what);
        poll->wait.spins = spins; /* a long wait stays a gentle one */
    }
    return fy_wait_turn(&poll->wait, expected, seen);
}

ferry_status fy_call_wait(fy_call *call, int worker, _Atomic uint32_t *flag, uint32_t target, ferry_phase phase,
                          int64_t step, const char *what) {
    uint32_t seen = atomic_load_explicit(flag, memory_order_acquire);
    if (seen >= target) return FERRY_OK;
    fy_call_poll poll;
    fy_call_poll_begin(&poll, call, phase, call->shape->rank, what);
    if (tell(call, worker, phase, 1, 1, step, what) != 0) return FERRY_E_STATE; /* the worker leaves silently */
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK && (seen = atomic_load_explicit(flag, memory_order_acquire)) < target)
        status = fy_call_poll_turn(&poll, call, target, seen);
    tell(call, worker, phase, 0, 1, step, what);
    return status;
}
