/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role compute: the products. A unit is a ticket: one tile of one product.
 * reads      rows in the ring, the context or (shared expert) own tensors; weights
 * writes     h, g, u, results, gradients; dweight partials
 * waits on   pulled[step], remade[step], made[step], pushed and finished of the step before on the same ring rows; done
 *            of the segment that used the open sums before
 * publishes  remade[step], made[step], finished[step], done of a segment; the caller's ready word of an expert
 */
#include "cpu/compute.h"

/* The group of a ticket; workers' tickets ascend, so the search goes on from the last one. */
static int64_t group_of(const fy_call *call, int64_t ticket, int64_t group) {
    while (ticket >=
           call->group[group].first_ticket + (int64_t)call->group[group].row_tiles * call->group[group].column_tiles)
        group++;
    return group;
}

static ferry_status await(fy_call *call, int worker, int64_t step, _Atomic uint32_t *flag, uint32_t target,
                          const char *what) {
    return fy_call_wait(call, worker, flag, target, FERRY_PHASE_COMPUTE, step, what);
}

/* The step before on the same ring rows has left them; without results there is no push. */
static ferry_status await_pushed(fy_call *call, int worker, int64_t step, fy_step *before, const char *what) {
    if (before == NULL || before->finish_units == 0) return FERRY_OK;
    return await(call, worker, step, &before->pushed, 1, what);
}

/* What a product of a step needs: its input, and its part of the ring. */
static ferry_status await_step(fy_call *call, int worker, fy_work work, int64_t step) {
    fy_step *s = &call->step[step], *before = s->before < 0 ? NULL : &call->step[s->before];
    switch (work) {
    case FY_WORK_MAKE:
    case FY_WORK_REMAKE:
        FY_TRY(await(call, worker, step, &s->pulled, 1, "pulled rows"));
        return before == NULL ? FERRY_OK
                              : await(call, worker, step, &before->finished, before->finish_units, "the ring's h rows");
    case FY_WORK_GRAD:
        FY_TRY(await(call, worker, step, &s->pulled, 1, "pulled rows"));
        FY_TRY(await(call, worker, step, &s->remade, s->remake_units, "recomputed gate and up"));
        /* dx products have read the gradient rows when the push reads the dweight partials. */
        return await_pushed(call, worker, step, before, "pushed dweight partials");
    default:
        FY_TRY(await(call, worker, step, &s->made, s->make_units, "the rows that this product reads"));
        return await_pushed(call, worker, step, before, "pushed result rows");
    }
}

static ferry_status await_shared(fy_call *call, int worker, fy_work work) {
    if (work == FY_WORK_MAKE || work == FY_WORK_REMAKE) return FERRY_OK;
    if (work == FY_WORK_GRAD)
        return await(call, worker, -1, &call->shared_remade, call->shared_remake_units, "the shared expert's gate");
    return await(call, worker, -1, &call->shared_made, call->shared_make_units, "the shared expert's rows");
}

static ferry_status await_segment(fy_call *call, int worker, const fy_segment *g) {
    for (int32_t s = g->first_step; s >= 0 && s <= g->last_step; s++)
        FY_TRY(await(call, worker, s, &call->step[s].made, call->step[s].make_units, "gradient rows"));
    if (g->before < 0) return FERRY_OK;
    fy_segment *before = &call->segment[g->before];
    return await(call, worker, g->first_step, &before->done, before->units, "the open sums");
}

static ferry_status await_inputs(fy_call *call, int worker, const fy_group *g) {
    if (g->work == FY_WORK_WEIGHT && g->index >= 0) return await_segment(call, worker, &call->segment[g->index]);
    if (g->index < 0) return await_shared(call, worker, g->work);
    return await_step(call, worker, g->work, call->piece[g->index].step);
}

static _Atomic uint32_t *done_flag(fy_call *call, const fy_group *g) {
    fy_step *s = g->work == FY_WORK_WEIGHT || g->index < 0 ? NULL : &call->step[call->piece[g->index].step];
    switch (g->work) {
    case FY_WORK_MAKE:
    case FY_WORK_GRAD:
        return s ? &s->made : &call->shared_made;
    case FY_WORK_REMAKE:
        return s ? &s->remade : &call->shared_remade;
    case FY_WORK_DOWN:
    case FY_WORK_DX:
        return s ? &s->finished : &call->shared_finished;
    case FY_WORK_WEIGHT:
        break;
    }
    return g->index < 0 ? &call->shared_segment.done : &call->segment[g->index].done;
}

static const char *const work_name[] = {"gate+up", "gate+up again", "SwiGLU gradient", "down", "dx", "weight gradient"};

static void tell_ready(fy_call *call, int64_t expert) {
    __atomic_store_n(&call->ready[expert], call->ready_value, __ATOMIC_RELEASE);
}

void fy_ready_unwanted(fy_call *call) {
    if (call->ready == NULL || call->segments == 0 || call->segment[0].units > 0) return;
    for (int64_t e = 0; e < call->shape->local_experts; e++) tell_ready(call, e);
}

/* The ticket's tile is there. The last tile of an expert's last segment makes the expert ready: the acquire is for the
 * other tiles' stores, which the caller's word then stands for too. */
static void tell_done(fy_call *call, const fy_group *g) {
    uint32_t before = atomic_fetch_add_explicit(done_flag(call, g), 1, memory_order_acq_rel);
    if (call->ready == NULL || g->work != FY_WORK_WEIGHT || g->index < 0) return;
    const fy_segment *segment = &call->segment[g->index];
    if (segment->closes && before + 1 == segment->units) tell_ready(call, segment->expert);
}

int fy_role_compute(fy_call *call, int worker, void *scratch) {
    int64_t group = 0;
    for (;;) {
        int64_t ticket = atomic_fetch_add_explicit(&call->next_ticket, 1, memory_order_relaxed);
        if (ticket >= call->tickets) return 0;
        group = group_of(call, ticket, group);
        const fy_group *g = &call->group[group];
        if (fy_aborted(call->comm) || await_inputs(call, worker, g) != FERRY_OK) return -1;
        int64_t step = g->index < 0                ? -1
                       : g->work == FY_WORK_WEIGHT ? call->segment[g->index].first_step
                                                   : call->piece[g->index].step;
        if (fy_call_begin(call, worker, FERRY_PHASE_COMPUTE, step, work_name[g->work]) != 0) return -1;
        fy_compute_unit(call, g, ticket - g->first_ticket, scratch);
        fy_call_end(call, worker, FERRY_PHASE_COMPUTE, step, work_name[g->work]);
        tell_done(call, g);
    }
}
