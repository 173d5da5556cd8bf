/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role schedule, on the calling thread.
 * reads      the caller's N, ids, weights, x (forward) or dout (backward); every rank's published record and tables
 * writes     staged tensors and this rank's tables; then the schedule: which slot of which rank every local row is
 * waits on   published[parity].call of every rank (entering deadline); at the end of a weight part, .done
 * publishes  published[parity].call, .done
 */
#include "cpu/state.h"

#include "rules/load.h"
#include "rules/place.h"

#include <stdio.h>
#include <string.h>

fy_schedule fy_schedule_at(const fy_schedule_layout *l, unsigned char *m) {
    return (fy_schedule){.tokens = (int64_t *)(m + l->tokens),
                         .rows = (int64_t *)(m + l->rows),
                         .first_block = (int64_t *)(m + l->first_block),
                         .source_base = (int64_t *)(m + l->source_base),
                         .row = (fy_row *)(m + l->row),
                         .leader = (int32_t *)(m + l->leader),
                         .ids = (int32_t *)(m + l->ids),
                         .weights = (float *)(m + l->weights)};
}

static fy_published *published_of(const fy_call *call, int rank) {
    return (fy_published *)fy_peer(call, rank, call->state->layout.symmetric.published) + call->parity;
}

static int32_t *ids_of(const fy_call *call, int rank) {
    const fy_shape *s = call->shape;
    return (int32_t *)fy_peer(call, rank, call->state->layout.symmetric.ids) + call->parity * s->max_tokens * s->slots;
}

static int32_t *positions_of(const fy_call *call, int rank) {
    const fy_shape *s = call->shape;
    return (int32_t *)fy_peer(call, rank, call->state->layout.symmetric.position) +
           call->parity * s->max_tokens * s->slots;
}

static int32_t *counts_of(const fy_call *call, int rank) {
    return (int32_t *)fy_peer(call, rank, call->state->layout.symmetric.counts) + call->parity * call->shape->experts;
}

/* Ids as the layer uses them, each slot's position among this rank's slots of its expert, and the counts. */
static void publish_ids(fy_call *call, const ferry_forward_args *args, fy_published *p) {
    int64_t slots = call->shape->slots, experts = call->shape->experts;
    int64_t *count = (int64_t *)fy_table(call, call->state->layout.table.cursor);
    int32_t *ids = ids_of(call, call->shape->rank), *position = positions_of(call, call->shape->rank);
    memset(count, 0, (size_t)experts * sizeof *count);
    for (int64_t i = 0; i < call->tokens * slots; i++) {
        int64_t id = args->ids_dtype == FERRY_I64 ? ((const int64_t *)args->ids)[i] : ((const int32_t *)args->ids)[i];
        int bad;
        ids[i] = fy_clean_id(id, experts, &bad);
        if (bad && p->bad_ids++ == 0) {
            p->bad_token = i / slots;
            p->bad_slot = i % slots;
            p->bad_id = id;
        }
        position[i] = ids[i] < 0 ? 0 : (int32_t)count[ids[i]]++;
    }
    int32_t *counts = counts_of(call, call->shape->rank);
    for (int64_t e = 0; e < experts; e++) counts[e] = (int32_t)count[e];
}

static void copy_rows(uint16_t *to, const uint16_t *from, int64_t from_stride, int64_t rows, int64_t columns) {
    if (from_stride == columns) {
        memcpy(to, from, (size_t)(rows * columns) * sizeof *to);
        return;
    }
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * columns, from + r * from_stride, (size_t)columns * sizeof *to);
}

/* What the sum and the backward need of this rank's own inputs. Only when the call is not refused: until then a
 * context holds what an earlier forward left. */
static void keep_inputs(fy_call *call, const ferry_forward_args *args) {
    const fy_shape *s = call->shape;
    const int32_t *ids = ids_of(call, s->rank);
    memcpy(call->schedule.ids, ids, (size_t)(call->tokens * s->slots) * sizeof *ids);
    for (int64_t i = 0; i < call->tokens * s->slots; i++) call->schedule.weights[i] = ids[i] < 0 ? 0 : args->weights[i];
    if (call->context)
        copy_rows((uint16_t *)(call->context->memory + call->state->layout.context.own_x), call->x, call->x_stride,
                  call->tokens, s->hidden);
}

/* Makes a caller's rows reachable for peers: as they are when they lie in symmetric memory, else by a staged copy. */
static const uint16_t *stage(fy_call *call, const void *rows, int64_t stride, int64_t staged_at, int64_t *out_stride,
                             int64_t *block, int64_t *offset) {
    int64_t columns = call->shape->hidden;
    if (stride == 0) stride = columns;
    size_t at, bytes = call->tokens == 0 ? 0 : (size_t)((call->tokens - 1) * stride + columns) * sizeof(uint16_t);
    fy_symmetric *found = bytes == 0 ? NULL : fy_symmetric_find(call->comm, rows, bytes, &at);
    if (found) {
        *block = found->number;
        *offset = (int64_t)at;
        *out_stride = stride;
        return rows;
    }
    uint16_t *staged = (uint16_t *)fy_own(call, staged_at);
    if (call->tokens > 0) copy_rows(staged, rows, stride, call->tokens, columns);
    *block = -1;
    *offset = 0;
    *out_stride = columns;
    return staged;
}

/* Publishes and waits until every rank has published the same call. */
static ferry_status meet(fy_call *call, fy_published *mine) {
    atomic_store_explicit(&mine->call, call->number, memory_order_release);
    for (int r = 0; r < call->shape->nranks; r++) {
        fy_published *p = published_of(call, r);
        FY_TRY(fy_wait_at_least(call->comm, &p->call, call->number, FERRY_PHASE_SCHEDULE, r, "its entry into the call",
                                call->comm->config.enter_timeout_s));
        if (p->kind == mine->kind && p->forward == mine->forward) continue;
        fy_fault fault = {.status = FERRY_E_MISMATCH,
                          .phase = FERRY_PHASE_SCHEDULE,
                          .waiting_rank = call->shape->rank,
                          .awaited_rank = r,
                          .expected = mine->kind != p->kind ? mine->kind : mine->forward,
                          .seen = mine->kind != p->kind ? p->kind : p->forward};
        strcpy(fault.what, mine->kind != p->kind ? "the same kind of call (0: forward, else parts of a backward)"
                                                 : "a backward of the same forward");
        fy_raise(call->comm, &fault);
        return fy_fault_status(call->comm);
    }
    return FERRY_OK;
}

/* A rank that has freed its part of a block of symmetric memory cannot reach the other ranks' parts either. */
static ferry_status check_blocks(fy_call *call) {
    for (int r = 0; r < call->shape->nranks; r++) {
        const fy_published *p = published_of(call, r);
        int64_t block = call->backward ? p->dout_block : p->x_block;
        if (block < 0 || fy_symmetric_numbered(call->comm, block) != NULL) continue;
        fy_fault fault = {.status = FERRY_E_STATE,
                          .phase = FERRY_PHASE_SCHEDULE,
                          .waiting_rank = call->shape->rank,
                          .awaited_rank = r,
                          .expected = -1,
                          .seen = -1};
        snprintf(fault.what, sizeof fault.what, "its %s lies in symmetric memory that rank %d has freed",
                 call->backward ? "dout" : "x", call->shape->rank);
        fy_raise(call->comm, &fault);
        return fy_fault_status(call->comm);
    }
    return FERRY_OK;
}

/* The same report on every rank: the lowest rank's first finding. */
static ferry_status gather_reports(fy_call *call) {
    ferry_report *report = &call->layer->report;
    int64_t bad = 0;
    for (int r = call->shape->nranks - 1; r >= 0; r--) {
        const fy_published *p = published_of(call, r);
        if (p->tokens < 0 || p->tokens > call->shape->max_tokens) {
            *report = (ferry_report){sizeof *report, FERRY_E_TOO_MANY_TOKENS, p->tokens, r, -1, -1, -1};
            return fy_fail(FERRY_E_TOO_MANY_TOKENS,
                           "ferry_forward: rank %d passed %lld tokens, expected 0 to max_tokens = %lld; nothing was "
                           "done on any rank",
                           r, (long long)p->tokens, (long long)call->shape->max_tokens);
        }
        bad += p->bad_ids;
        if (p->bad_ids > 0)
            *report = (ferry_report){sizeof *report, FERRY_E_BAD_ID, 0, r, p->bad_token, p->bad_slot, p->bad_id};
    }
    if (bad > 0) report->count = bad;
    return FERRY_OK;
}

/* Rows of every local expert, where its segment begins, and how many of its rows come before each source's. */
static void place_experts(fy_call *call) {
    const ferry_layer *layer = call->layer;
    const fy_schedule *s = &call->schedule;
    int nranks = call->shape->nranks;
    for (int r = 0; r < nranks; r++) s->tokens[r] = published_of(call, r)->tokens;
    s->first_block[0] = 0;
    for (int64_t e = 0; e < call->shape->local_experts; e++) {
        int64_t *base = s->source_base + e * (nranks + 1);
        base[0] = 0;
        for (int r = 0; r < nranks; r++) base[r + 1] = base[r] + counts_of(call, r)[layer->local_expert[e]];
        s->rows[e] = base[nranks];
        s->first_block[e + 1] = s->first_block[e] + fy_blocks_of_rows(s->rows[e]);
    }
}

/* Rows of every expert over all ranks, and how even they are, where the caller wants them. */
static void tell_load(fy_call *call, const ferry_forward_args *args) {
    int64_t experts = call->shape->experts, rank_rows[FY_MAX_RANKS];
    int nranks = call->shape->nranks;
    /* The counters of the sort are free again. */
    int32_t *rows = args->expert_rows ? args->expert_rows : (int32_t *)fy_table(call, call->state->layout.table.cursor);
    if (args->expert_rows == NULL && args->load == NULL) return;
    memset(rows, 0, (size_t)experts * sizeof *rows);
    for (int r = 0; r < nranks; r++)
        for (int64_t e = 0; e < experts; e++) rows[e] += counts_of(call, r)[e];
    if (args->load) fy_load_of(rows, call->layer->expert_rank, experts, nranks, rank_rows, args->load);
}

/* The padded row of a slot of rank r, or -1 when its expert is elsewhere. */
static int64_t row_of(const fy_call *call, int r, const int32_t *ids, const int32_t *position, int64_t slot) {
    int32_t id = ids[slot];
    if (id < 0 || call->layer->expert_rank[id] != call->shape->rank) return -1;
    int64_t e = call->layer->expert_local[id];
    return call->schedule.first_block[e] * FY_BLOCK_ROWS +
           call->schedule.source_base[e * (call->shape->nranks + 1) + r] + position[slot];
}

/* Fills the table of rows, and finds for every row the first row of its token in its macrobatch. */
static void place_rows(fy_call *call) {
    const fy_shape *shape = call->shape;
    int64_t macros = call->state->layout.max_macrobatches, slots = shape->slots, seen = 0;
    int64_t *lead = (int64_t *)fy_table(call, call->state->layout.table.lead), *token_of = lead + macros;
    for (int64_t m = 0; m < macros; m++) token_of[m] = -1;
    call->layer->stats.bytes_schedule = 0;
    for (int r = 0; r < shape->nranks; r++) {
        const int32_t *ids = ids_of(call, r), *position = positions_of(call, r);
        int64_t tokens = call->schedule.tokens[r];
        for (int64_t t = 0; t < tokens; t++, seen++) {
            for (int64_t i = t * slots; i < (t + 1) * slots; i++) {
                int64_t row = row_of(call, r, ids, position, i);
                if (row < 0) continue;
                call->schedule.row[row] = (fy_row){r, (int32_t)i};
                int64_t m = fy_macrobatch_of_row(row, shape->ring_rows);
                if (token_of[m] != seen || row < lead[m]) lead[m] = row;
                token_of[m] = seen;
            }
            for (int64_t i = t * slots; i < (t + 1) * slots; i++) {
                int64_t row = row_of(call, r, ids, position, i);
                if (row >= 0) call->schedule.leader[row] = (int32_t)lead[fy_macrobatch_of_row(row, shape->ring_rows)];
            }
        }
        if (r != shape->rank)
            call->layer->stats.bytes_schedule +=
                (shape->experts + 2 * tokens * slots) * (int64_t)sizeof(int32_t) + (int64_t)sizeof(fy_published);
    }
}

ferry_status fy_role_schedule_forward(fy_call *call, const ferry_forward_args *args) {
    const fy_layout *l = &call->state->layout;
    fy_published *mine = published_of(call, call->shape->rank);
    mine->kind = 0;
    mine->forward = call->layer->forwards;
    mine->tokens = *args->num_tokens;
    mine->bad_ids = 0;
    call->tokens = mine->tokens;
    if (call->tokens >= 0 && call->tokens <= call->shape->max_tokens) {
        publish_ids(call, args, mine);
        call->x =
            stage(call, args->x, args->x_stride, l->symmetric.x, &call->x_stride, &mine->x_block, &mine->x_offset);
        mine->x_stride = call->x_stride;
    }
    FY_TRY(meet(call, mine));
    FY_TRY(gather_reports(call));
    FY_TRY(check_blocks(call));
    keep_inputs(call, args);
    place_experts(call);
    tell_load(call, args);
    place_rows(call);
    return FERRY_OK;
}

ferry_status fy_role_schedule_backward(fy_call *call, const ferry_backward_args *args) {
    const fy_layout *l = &call->state->layout;
    const fy_shape *s = call->shape;
    fy_published *mine = published_of(call, s->rank);
    call->tokens = call->schedule.tokens[s->rank];
    mine->kind = call->parts;
    mine->forward = call->context->forward;
    mine->tokens = call->tokens;
    mine->bad_ids = 0;
    call->x = (const uint16_t *)(call->context->memory + l->context.own_x);
    call->x_stride = s->hidden;
    memcpy(fy_own(call, l->symmetric.x), call->x, (size_t)(call->tokens * s->hidden) * sizeof(uint16_t));
    memcpy(fy_own(call, l->symmetric.weights), call->schedule.weights,
           (size_t)(call->tokens * s->slots) * sizeof(float));
    mine->x_block = -1;
    mine->x_offset = 0;
    mine->x_stride = s->hidden;
    call->dout = stage(call, args->dout, args->dout_stride, l->symmetric.dout, &call->dout_stride, &mine->dout_block,
                       &mine->dout_offset);
    mine->dout_stride = call->dout_stride;
    FY_TRY(meet(call, mine));
    return check_blocks(call);
}

/* What arrives tells a rank that its rows were read; where nothing is pushed, ranks have to say so. */
ferry_status fy_role_schedule_part(fy_call *call) {
    atomic_store_explicit(&published_of(call, call->shape->rank)->done, call->number, memory_order_release);
    for (int r = 0; r < call->shape->nranks; r++) {
        fy_published *p = published_of(call, r);
        uint64_t seen;
        fy_call_poll poll;
        fy_call_poll_begin(&poll, call, FERRY_PHASE_PULL, r, "its pulls of this rank's rows");
        while ((seen = atomic_load_explicit(&p->done, memory_order_acquire)) < call->number)
            FY_TRY(fy_call_poll_turn(&poll, call, (int64_t)call->number, (int64_t)seen));
    }
    return FERRY_OK;
}
