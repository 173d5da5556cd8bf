/* SPDX-License-Identifier: Apache-2.0 */
/* What the host's page says, rows of experts and load statistics. */
#include "checks.h"

#include "rules/load.h"
#include "rules/ring.h"
#include "scheduler.h"

static std::vector<int32_t> rows_of_experts() {
    std::vector<int32_t> rows(layer.experts);
    for (const made_up_rank &q : layer.rank)
        for (int i = 0; i < q.worked() * layer.slots; i++)
            if (q.expert(i) >= 0) rows[q.expert(i)]++;
    return rows;
}

/* Of too many tokens the first such rank is named; else, of bad ids, how many there are, and the first rank's first. */
static void check_complaint(const made_up_rank &q) {
    const fy_gpu_page &p = q.page;
    int status = FERRY_OK, rank = -1;
    int64_t count = 0, slot = -1, id = 0;
    for (int r = 0; r < layer.ranks; r++) {
        const made_up_rank &source = layer.rank[r];
        for (int i = 0; i < source.worked() * layer.slots; i++) {
            if (source.expert(i) >= 0 || source.id[i] == -1) continue;
            count++;
            if (rank >= 0) continue;
            rank = r, slot = i, id = source.id[i], status = FERRY_E_BAD_ID;
        }
    }
    for (int r = layer.ranks - 1; r >= 0; r--)
        if (layer.rank[r].worked() != layer.rank[r].tokens)
            rank = r, slot = -1, id = 0, count = layer.rank[r].tokens, status = FERRY_E_TOO_MANY_TOKENS;
    if (status == FERRY_OK) {
        CHECK(p.report != q.state.calls, q.call.rank, "status %d is reported of nothing", p.report_status);
        return;
    }
    CHECK(p.report == q.state.calls && p.report_status == status && p.report_rank == rank, q.call.rank,
          "call %d reports status %d of rank %d, not %d of %d", (int)p.report, p.report_status, p.report_rank, status,
          rank);
    CHECK(p.report_count == count && p.report_slot == slot && p.report_id == id, q.call.rank,
          "report: %lld, slot %lld, id %lld, not %lld, slot %lld, id %lld", (long long)p.report_count,
          (long long)p.report_slot, (long long)p.report_id, (long long)count, (long long)slot, (long long)id);
}

static void check_page(const made_up_rank &q, const std::vector<int32_t> &rows) {
    const fy_gpu_call &c = q.call;
    int64_t here = 0, own = 0, sums = c.shared > 0 ? q.tokens : 0, bytes = 0, blocks[FY_GPU_MAX_RANKS] = {}, most = 0;
    for (int e = 0; e < layer.experts; e++) {
        int owner = layer.expert_rank[e];
        blocks[owner] += fy_blocks_of_rows(rows[e]);
        most = fy_most(most, blocks[owner]);
        if (owner == c.rank) here += rows[e];
    }
    for (int i = 0; i < q.tokens * layer.slots; i++) {
        sums += q.expert(i) >= 0;
        own += q.expert(i) >= 0 && layer.expert_rank[q.expert(i)] == c.rank;
    }
    for (const made_up_rank &peer : layer.rank)
        if (peer.call.rank != c.rank) bytes += 8 * (int64_t)peer.tokens * layer.slots + 4 * layer.experts + 24;
    const struct {
        const char *name;
        int64_t seen, expected;
    } numbers[] = {{"rows", q.page.rows, here},
                   {"rows for peers", q.page.remote_rows, here - own},
                   {"rows of sums", q.page.sum_rows, sums},
                   {"rows of products", q.page.routed_products, 3 * here},
                   {"shared rows of products", q.page.shared_products, 3 * q.tokens},
                   {"tokens", q.page.tokens, q.tokens},
                   {"blocks", q.page.blocks, q.state.blocks},
                   {"most blocks of a rank", q.state.most_blocks, most},
                   {"macrobatches", q.page.macrobatches, q.state.macrobatches},
                   {"bytes of tables", q.page.table_bytes, bytes}};
    for (const auto &n : numbers)
        CHECK(n.seen == n.expected, c.rank, "%s: %lld, not %lld", n.name, (long long)n.seen, (long long)n.expected);
}

static void check_load(const made_up_rank &q, const std::vector<int32_t> &rows) {
    for (int e = 0; e < layer.experts; e++)
        CHECK(q.expert_rows[e] == rows[e], q.call.rank, "expert %d has %d rows, not %d", e, q.expert_rows[e], rows[e]);
    int64_t scratch[FY_GPU_MAX_RANKS];
    ferry_load load;
    fy_load_of(rows.data(), layer.expert_rank.data(), layer.experts, layer.ranks, scratch, &load);
    CHECK(memcmp(&q.load, &load, sizeof load) == 0, q.call.rank,
          "load: %lld rows, expert %d and rank %d busiest, not %lld, %d, %d, or other numbers of it",
          (long long)q.load.rows, q.load.busiest_expert, q.load.busiest_rank, (long long)load.rows, load.busiest_expert,
          load.busiest_rank);
}

void check_reports(made_up_rank &q) {
    check_complaint(q);
    if (call_is_skipped() || !failure.empty()) return;
    std::vector<int32_t> rows = rows_of_experts();
    check_page(q, rows);
    if (failure.empty()) check_load(q, rows);
}
