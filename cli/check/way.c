/* SPDX-License-Identifier: Apache-2.0 */
/* What a way makes of a problem: splits, expert placement, rows, and its description. */
#include "cli/check/problem.h"

#include <stdio.h>
#include <stdlib.h>

int check_way_ranks(const check_way *way) { return way->ranks ? way->ranks : 1; }

int64_t check_way_tokens(const check_way *way, int64_t total, int rank) {
    if (way->split) return way->split[rank];
    int ranks = check_way_ranks(way);
    return total / ranks + (rank < total % ranks);
}

int64_t check_way_first(const check_way *way, int64_t total, int rank) {
    int64_t first = 0;
    for (int r = 0; r < rank; r++) first += check_way_tokens(way, total, r);
    return first;
}

int64_t check_way_max_tokens(const check_way *way, int64_t total) {
    int64_t most = way->max_tokens;
    for (int r = 0; r < check_way_ranks(way) && !way->max_tokens; r++) {
        int64_t tokens = check_way_tokens(way, total, r);
        if (tokens > most) most = tokens;
    }
    return most;
}

int check_way_expert_rank(const check_way *way, int64_t experts, int64_t expert) {
    int ranks = check_way_ranks(way);
    if (way->scattered) return (int)((7 * expert + 3) % ranks);
    int64_t each = experts / ranks, longer = experts % ranks;
    if (expert < longer * (each + 1)) return (int)(expert / (each + 1));
    return (int)(longer + (expert - longer * (each + 1)) / each);
}

int64_t check_way_rows(const check_way *way, const check_batch *batch) {
    const check_problem *p = &batch->problem;
    int64_t *rows = calloc((size_t)p->experts, sizeof *rows), padded[CHECK_MAX_RANKS] = {0}, most = 64;
    if (!rows) return most;
    for (int64_t i = 0; i < p->tokens * p->slots; i++) {
        if (batch->ids[i] >= 0 && batch->ids[i] < p->experts) rows[batch->ids[i]]++;
    }
    for (int64_t e = 0; e < p->experts; e++) {
        padded[check_way_expert_rank(way, p->experts, e)] += (rows[e] + 63) / 64 * 64;
    }
    for (int r = 0; r < check_way_ranks(way); r++) {
        if (padded[r] > most) most = padded[r];
    }
    free(rows);
    return most;
}

int64_t check_way_ring(const check_way *way, const check_batch *batch) {
    if (!way->ring_part) return way->ring;
    return (check_way_rows(way, batch) / way->ring_part + 63) / 64 * 64;
}

void check_describe(const check_problem *p, const check_way *way, char *to, size_t room) {
    static const char *const saves[] = {"saved", "half saved", "recompute", "saved by rule"};
    static const char *const layouts[] = {"separate", "fused", "table"};
    static const char *const parts[] = {"", " data first", " weight first"};
    static const char *const isas[] = {"", " portable", " avx2", " avx512"};
    char tokens[128] = "", shared[32] = "", limit[32] = "";
    size_t used = 0;
    for (int r = 0; r < check_way_ranks(way) && used < sizeof tokens; r++) {
        used += (size_t)snprintf(tokens + used, sizeof tokens - used, "%s%lld", r ? "+" : "",
                                 (long long)check_way_tokens(way, p->tokens, r));
    }
    if (p->shared) snprintf(shared, sizeof shared, " S%lld", (long long)p->shared);
    if (p->limit > 0) snprintf(limit, sizeof limit, " L%g", (double)p->limit);
    snprintf(to, room, "N %s H%lld I%lld%s E%lld K%lld%s %s ring %lld/%lld workers %d+%d %s %s%s%s%s%s%s%s%s%s", tokens,
             (long long)p->hidden, (long long)p->intermediate, shared, (long long)p->experts, (long long)p->slots,
             limit, way->processes ? "processes" : "threads", (long long)way->ring, (long long)way->minibatch,
             way->comm_workers, way->compute_workers, saves[way->save], layouts[way->layout], isas[way->isa],
             way->ids_dtype == FERRY_I64 ? " i64" : "", way->grad_dtype == FERRY_BF16 ? " bf16" : "",
             way->beta > 0 ? " beta" : "", parts[way->parts_first], way->symmetric ? " symmetric" : "",
             way->padded ? " padded" : "", way->scattered ? " scattered" : "");
}
