/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places the rows and walks the macrobatches of every rank by the rules that the layer itself follows (src/rules),
 * token by token, for plan.c and bench_cuda_report.c. Only counts are kept, no row is.
 */
#include "cli/plan_count.h"

#include "core/check.h"
#include "core/plan.h"
#include "rules/place.h"
#include "rules/ring.h"
#include "rules/walk.h"

#include <stdlib.h>

/* What one rank's layer looks like, and where the rows of its experts are. */
typedef struct rank_layout {
    fy_shape shape;
    int64_t blocks;
} rank_layout;

/* While counting. */
typedef struct counting {
    const plan_input *input;
    plan_counts *counts;
    rank_layout *rank;    /* [nranks] */
    int32_t *expert_rank; /* [E] */
    int64_t *next_row;    /* [E] the padded row of the expert's next slot */
    int64_t *slot_row;    /* [K] of one token; -1: no expert */
    int32_t *slot_rank;   /* [K] */
    int64_t record_bytes;
} counting;

static int32_t id_at(const plan_input *in, int64_t slot) {
    int bad;
    int64_t id = in->ids_dtype == FERRY_I64 ? ((const int64_t *)in->ids)[slot] : ((const int32_t *)in->ids)[slot];
    return fy_clean_id(id, in->config->experts, &bad);
}

/* Segments of a rank's experts, in the order of their ids, each from a block of its own. */
static void place_experts(counting *c) {
    const plan_input *in = c->input;
    int64_t slots = in->first_token[in->nranks] * in->config->slots;
    for (int64_t i = 0; i < slots; i++) {
        int32_t id = id_at(in, i);
        if (id >= 0) c->next_row[id]++;
    }
    for (int64_t e = 0; e < in->config->experts; e++) {
        rank_layout *holder = &c->rank[c->expert_rank[e]];
        int64_t rows = c->next_row[e];
        c->next_row[e] = holder->blocks * FY_BLOCK_ROWS;
        holder->blocks += fy_blocks_of_rows(rows);
        c->counts->rank[c->expert_rank[e]].forward.rows += rows;
    }
}

/* Whether a backward right after its forward finds x, g and u of a row neither in the context nor in the ring. */
static int is_missing(const fy_shape *s, int64_t row) {
    return row >= s->context_rows && fy_macrobatch_of_row(row, s->ring_rows) != 0;
}

/* The first row of a token in a macrobatch is pulled; the others are copied from it. */
static int is_leader(const counting *c, int64_t k) {
    int64_t ring_rows = c->rank[c->slot_rank[k]].shape.ring_rows, row = c->slot_row[k];
    for (int64_t i = 0; i < c->input->config->slots; i++)
        if (c->slot_row[i] >= 0 && c->slot_row[i] < row && c->slot_rank[i] == c->slot_rank[k] &&
            fy_macrobatch_of_row(c->slot_row[i], ring_rows) == fy_macrobatch_of_row(row, ring_rows))
            return 0;
    return 1;
}

static void count_token(counting *c, int source, int64_t token) {
    const plan_input *in = c->input;
    int64_t slots = in->config->slots;
    for (int64_t k = 0; k < slots; k++) {
        int32_t id = id_at(in, token * slots + k);
        c->slot_rank[k] = id < 0 ? -1 : c->expert_rank[id];
        c->slot_row[k] = id < 0 ? -1 : c->next_row[id]++;
    }
    for (int64_t k = 0; k < slots; k++) {
        if (c->slot_row[k] < 0) continue;
        plan_pair *pair = &c->counts->pair[c->slot_rank[k] * in->nranks + source];
        int leader = is_leader(c, k), missing = is_missing(&c->rank[c->slot_rank[k]].shape, c->slot_row[k]);
        pair->rows++;
        pair->leaders += leader;
        pair->missing += missing;
        pair->missing_leaders += leader && missing;
    }
}

static void count_pairs(counting *c) {
    const plan_input *in = c->input;
    for (int r = 0; r < in->nranks; r++)
        for (int64_t t = in->first_token[r]; t < in->first_token[r + 1]; t++) count_token(c, r, t);
}

/* ---- From counts to bytes ---- */

static const int64_t element = sizeof(uint16_t);

/* A router weight comes with every dout row, a weight gradient goes with every dx row. */
static int64_t beside_row(int backward) { return backward ? (int64_t)sizeof(float) : 0; }

static plan_bytes pull_bytes(const plan_pair *p, int64_t hidden, int backward) {
    int64_t fanned = p->leaders + (backward ? p->missing_leaders : 0), each = p->rows + (backward ? p->missing : 0);
    int64_t beside = p->rows * beside_row(backward);
    return (plan_bytes){fanned * hidden * element + beside, each * hidden * element + beside};
}

static int64_t push_bytes(const plan_pair *p, int64_t hidden, int backward) {
    return p->rows * (hidden * element + beside_row(backward));
}

plan_bytes plan_link(const plan_counts *counts, int from, int to, int backward) {
    plan_bytes pulled = pull_bytes(&counts->pair[to * counts->nranks + from], counts->hidden, backward);
    int64_t pushed = push_bytes(&counts->pair[from * counts->nranks + to], counts->hidden, backward);
    return (plan_bytes){pulled.fanned + pushed, pulled.each + pushed};
}

static void add_links(plan_counts *counts, int rank) {
    plan_rank *p = &counts->rank[rank];
    for (int other = 0; other < counts->nranks; other++) {
        for (int backward = 0; other != rank && backward <= 1; backward++) {
            plan_bytes *in = backward ? &p->backward_in : &p->forward_in;
            plan_bytes *out = backward ? &p->backward_out : &p->forward_out;
            plan_bytes from = plan_link(counts, other, rank, backward), to = plan_link(counts, rank, other, backward);
            in->fanned += from.fanned;
            in->each += from.each;
            out->fanned += to.fanned;
            out->each += to.each;
        }
    }
}

/* Operations of a rank's products: rows of its experts, and its own tokens through the shared expert. */
static int64_t flop_of(const fy_shape *s, int64_t rows, int64_t remade, int64_t tokens, int backward) {
    int64_t shared_again = backward && s->context_rows == 0 ? tokens : 0;
    int64_t per_row = 6 * (1 + backward) * s->hidden; /* a forward multiplies three matrices, a backward twice each */
    return s->intermediate * (per_row * rows + 4 * s->hidden * remade) +
           s->shared * (per_row * tokens + 4 * s->hidden * shared_again);
}

static void fill_stats(const counting *c, int rank, int backward, ferry_stats *stats) {
    const plan_counts *counts = c->counts;
    const fy_shape *s = &c->rank[rank].shape;
    int64_t tokens = counts->rank[rank].tokens, hidden = s->hidden;
    fy_walk walk = {c->rank[rank].blocks, s->ring_rows / FY_BLOCK_ROWS, s->minibatch_rows / FY_BLOCK_ROWS, backward};
    *stats = (ferry_stats){.size = sizeof *stats, .rows = counts->rank[rank].forward.rows};
    stats->macrobatches = fy_walk_macrobatches(walk);
    stats->steps = fy_walk_steps(walk);
    stats->ring_high_water = (walk.blocks < walk.ring_blocks ? walk.blocks : walk.ring_blocks) * FY_BLOCK_ROWS;
    for (int r = 0; r < counts->nranks; r++) {
        const plan_pair *p = &counts->pair[rank * counts->nranks + r];
        int64_t pulled = pull_bytes(p, hidden, backward).fanned, pushed = push_bytes(p, hidden, backward);
        stats->pulls += p->leaders + (backward ? p->missing_leaders : 0);
        stats->recomputed_rows += backward ? p->missing : 0;
        stats->bytes_pull += pulled;
        stats->bytes_push += pushed;
        if (r == rank) continue;
        stats->bytes_pull_remote += pulled;
        stats->bytes_push_remote += pushed;
        stats->bytes_schedule += s->experts * (int64_t)sizeof(int32_t) + c->record_bytes +
                                 counts->rank[r].tokens * s->slots * 2 * (int64_t)sizeof(int32_t);
    }
    stats->bytes_sum = tokens * (s->slots + 1 + (s->shared > 0)) * hidden * element;
    stats->flop = flop_of(s, stats->rows, stats->recomputed_rows, tokens, backward);
}

static ferry_status plan_ranks(counting *c) {
    const plan_input *in = c->input;
    for (int r = 0; r < in->nranks; r++) {
        c->counts->rank[r].tokens = in->first_token[r + 1] - in->first_token[r];
        FY_TRY(fy_plan(in->config, fy_backend_of(in->backend), r, in->nranks, in->comm_workers, in->compute_workers,
                       &c->rank[r].shape, &c->counts->rank[r].plan));
    }
    return FERRY_OK;
}

static ferry_status count(counting *c) {
    FY_TRY(fy_check_layer_config(c->input->config, c->input->nranks));
    if (!fy_backend_of(c->input->backend))
        return fy_fail(FERRY_E_UNSUPPORTED, "this build does not have the CUDA backend");
    c->record_bytes = fy_backend_of(c->input->backend)->record_bytes;
    FY_TRY(plan_ranks(c));
    for (int64_t e = 0; e < c->input->config->experts; e++)
        c->expert_rank[e] = fy_rank_of_expert(c->input->config, c->input->nranks, e);
    place_experts(c);
    count_pairs(c);
    for (int r = 0; r < c->input->nranks; r++) {
        plan_rank *p = &c->counts->rank[r];
        fill_stats(c, r, 0, &p->forward);
        if (c->input->has_backward) fill_stats(c, r, 1, &p->backward);
        add_links(c->counts, r);
    }
    return FERRY_OK;
}

ferry_status plan_count(const plan_input *input, plan_counts *counts) {
    size_t nranks = (size_t)input->nranks, experts = (size_t)input->config->experts;
    size_t slots = (size_t)input->config->slots;
    *counts = (plan_counts){.nranks = input->nranks, .hidden = input->config->hidden};
    counts->rank = calloc(nranks, sizeof *counts->rank);
    counts->pair = calloc(nranks * nranks, sizeof *counts->pair);
    counting c = {.input = input,
                  .counts = counts,
                  .rank = calloc(nranks, sizeof *c.rank),
                  .expert_rank = calloc(experts, sizeof *c.expert_rank),
                  .next_row = calloc(experts, sizeof *c.next_row),
                  .slot_row = calloc(slots, sizeof *c.slot_row),
                  .slot_rank = calloc(slots, sizeof *c.slot_rank)};
    ferry_status status = FERRY_OK;
    if (!counts->rank || !counts->pair || !c.rank || !c.expert_rank || !c.next_row || !c.slot_row || !c.slot_rank)
        status = fy_fail(FERRY_E_MEMORY, "no memory to count rows over %d ranks and %lld experts", input->nranks,
                         (long long)input->config->experts);
    if (status == FERRY_OK) status = count(&c);
    free(c.rank);
    free(c.expert_rank);
    free(c.next_row);
    free(c.slot_row);
    free(c.slot_rank);
    if (status != FERRY_OK) plan_counts_free(counts);
    return status;
}

void plan_counts_free(plan_counts *counts) {
    free(counts->rank);
    free(counts->pair);
    *counts = (plan_counts){0};
}
