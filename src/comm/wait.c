/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for another rank or worker, always bounded: a turn looks at this rank's abort word, at whether the awaited
 * rank has left, and now and then at the clock. Many waiters may share few processors, so a wait soon yields, then
 * sleeps.
 */
#include "comm/clock.h"
#include "comm/control.h"

#include <sched.h>
#include <stdio.h>

enum {
    PAUSES = 50,          /* turns that only pause: for what is nearly there */
    YIELDS = 100,         /* turns that then yield the processor */
    CLOCK_EVERY = 16,     /* turns between looks at the clock while not sleeping */
    SLEEP_STEP_NS = 1000, /* each sleep is longer than the last one by this, up to the longest */
    LONGEST_SLEEP_NS = 100000,
    LONGEST_LOOK_NS = 100000000 /* counted between two looks at the clock */
};

static void back_off(int turn) {
    if (turn < PAUSES) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    } else if (turn < PAUSES + YIELDS) {
        sched_yield();
    } else {
        int64_t ns = (int64_t)SLEEP_STEP_NS * (turn - PAUSES - YIELDS + 1);
        fy_sleep_ns(ns < LONGEST_SLEEP_NS ? ns : LONGEST_SLEEP_NS);
    }
}

void fy_wait_begin(fy_wait *wait, ferry_comm *comm, ferry_phase phase, int awaited_rank, const char *what,
                   double timeout_s) {
    *wait = (fy_wait){.comm = comm, .phase = phase, .awaited_rank = awaited_rank, .what = what, .timeout_s = timeout_s};
}

/* A fault found by somebody else, with what this wait was about. */
static ferry_status interrupted(const fy_wait *wait, int64_t expected, int64_t seen) {
    ferry_status status = fy_fault_status(wait->comm);
    return fy_fail(status, "%s; rank %d was waiting for rank %d in phase %s: %s, expected %lld, seen %lld",
                   ferry_last_error(), wait->comm->rank, wait->awaited_rank, fy_phase_name(wait->phase), wait->what,
                   (long long)expected, (long long)seen);
}

static ferry_status give_up(const fy_wait *wait, ferry_status status, const char *what, int64_t expected,
                            int64_t seen) {
    fy_fault fault = {.status = status,
                      .phase = wait->phase,
                      .waiting_rank = wait->comm->rank,
                      .awaited_rank = wait->awaited_rank,
                      .expected = expected,
                      .seen = seen,
                      .waited_s = wait->timeout_s};
    snprintf(fault.what, sizeof fault.what, "%s", what);
    fy_raise(wait->comm, &fault);
    return fy_fault_status(wait->comm);
}

/* Looks at the clock; 1 when the deadline has passed. Where much time lies between two looks this process was stopped,
 * and its peers perhaps with it: that is not time that they let pass. */
static int is_late(fy_wait *wait) {
    int64_t now = fy_now_ns(), since = wait->looked_ns ? now - wait->looked_ns : 0;
    int first = wait->looked_ns == 0;
    wait->looked_ns = now;
    wait->waited_ns += since < LONGEST_LOOK_NS ? since : LONGEST_LOOK_NS;
    return !first && (double)wait->waited_ns >= wait->timeout_s * 1e9;
}

ferry_status fy_wait_turn(fy_wait *wait, int64_t expected, int64_t seen) {
    ferry_comm *comm = wait->comm;
    if (fy_aborted(comm)) return interrupted(wait, expected, seen);

    /* What a rank did before it left counts: the caller polls once more after `left` was seen. */
    if (wait->left_seen == wait->awaited_rank + 1) {
        char what[sizeof((fy_fault *)0)->what];
        snprintf(what, sizeof what, "it left (destroyed its communicator) before %s", wait->what);
        return give_up(wait, FERRY_E_PEER, what, expected, seen);
    }
    if (wait->awaited_rank != comm->rank &&
        atomic_load_explicit(&fy_control_of(comm, wait->awaited_rank)->left, memory_order_acquire) != 0) {
        wait->left_seen = wait->awaited_rank + 1;
        return FERRY_OK;
    }

    int turn = wait->spins;
    if (turn < PAUSES + YIELDS + LONGEST_SLEEP_NS / SLEEP_STEP_NS) wait->spins++;
    if (turn >= PAUSES + YIELDS || turn % CLOCK_EVERY == CLOCK_EVERY - 1) {
        if (is_late(wait)) return give_up(wait, FERRY_E_TIMEOUT, wait->what, expected, seen);
    }
    back_off(turn);
    return FERRY_OK;
}

ferry_status fy_wait_at_least(ferry_comm *comm, _Atomic uint64_t *flag, uint64_t target, ferry_phase phase,
                              int awaited_rank, const char *what, double timeout_s) {
    fy_wait wait;
    fy_wait_begin(&wait, comm, phase, awaited_rank, what, timeout_s);
    for (;;) {
        uint64_t seen = atomic_load_explicit(flag, memory_order_acquire);
        if (seen >= target) return FERRY_OK;
        FY_TRY(fy_wait_turn(&wait, (int64_t)target, (int64_t)seen));
    }
}
