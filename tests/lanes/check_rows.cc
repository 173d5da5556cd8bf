/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where rows are: a local expert's rows begin with a block, experts ascending; within an expert rows ascend by rank,
 * then slot.
 */
#include "checks.h"

#include "rules/ring.h"
#include "scheduler.h"

static int rows_from(made_up_rank &source, int expert) {
    int rows = 0;
    for (int i = 0; i < source.worked() * layer.slots; i++) rows += source.expert(i) == expert;
    return rows;
}

static void check_experts(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    int block = 0, rows = 0;
    for (int l = 0; l < c.local_experts; l++) {
        CHECK(q.first_block[l] == block, c.rank, "expert %d begins with block %d, not %d", l, q.first_block[l], block);
        int row = block * FY_BLOCK_ROWS, first = row;
        for (int s = 0; s < layer.ranks; s++) {
            int at = q.base[l * layer.ranks + s];
            CHECK(at == row, c.rank, "rows of rank %d for expert %d begin with %d, not %d", s, l, at, row);
            row += rows_from(layer.rank[s], q.local_expert[l]);
        }
        CHECK(q.rows[l] == row - first, c.rank, "expert %d has %d rows, not %d", l, q.rows[l], row - first);
        block += (int)fy_blocks_of_rows(row - first);
        rows += row - first;
    }
    CHECK(q.first_block[c.local_experts] == block, c.rank, "experts end with block %d", q.first_block[c.local_experts]);
    CHECK(q.state.blocks == block && block <= c.max_blocks, c.rank, "%d blocks, not %d", q.state.blocks, block);
    CHECK(q.state.rows == rows, c.rank, "%d rows, not %d", q.state.rows, rows);
    CHECK(q.state.tokens == q.tokens, c.rank, "%d tokens, not %d", q.state.tokens, q.tokens);
}

/* Beyond the slots that a rank has nothing is written in a first call; later ones leave what was there. */
static void check_slots(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    std::vector<int> next(c.local_experts);
    for (int l = 0; l < c.local_experts; l++) next[l] = q.first_block[l] * FY_BLOCK_ROWS;
    int64_t all = (int64_t)layer.max_tokens * layer.slots;
    for (int s = 0; s < layer.ranks; s++) {
        const made_up_rank &source = layer.rank[s];
        for (int i = 0; i < source.tokens * layer.slots; i++) {
            int e = source.expert(i), l = e < 0 ? -1 : q.expert_local[e], row = l < 0 ? -1 : next[l]++;
            int seen = q.slot_row[s * all + i];
            CHECK(seen == row, c.rank, "slot %d of rank %d has row %d, not %d", i, s, seen, row);
            if (row < 0) continue;
            fy_gpu_source from = q.source[row];
            CHECK(from.rank == s && from.slot == i, c.rank, "row %d comes from slot %d of rank %d, not slot %d of %d",
                  row, from.slot, from.rank, i, s);
        }
        for (int64_t i = (int64_t)source.tokens * layer.slots; i < all && q.state.calls == 1; i++)
            CHECK(q.slot_row[s * all + i] == untouched<int32_t>(), c.rank, "slot %d of rank %d is written", (int)i, s);
    }
    CHECK(q.slot_row[layer.ranks * all] == untouched<int32_t>(), c.rank, "a slot behind all %d is written",
          (int)(layer.ranks * all));
}

/* Counters of the compute launch, and what its tokens wait for. */
static void check_cleared(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    auto clear = [&q](int b) { return q.made[b] == 0 && q.sent[b] == 0; };
    for (int b = 0; b < q.state.blocks; b++)
        CHECK(q.pulled[b] == 0 && clear(b), c.rank, "counters of block %d are not 0", b);
    for (int b = 0; c.shared > 0 && b < fy_blocks_of_rows(q.tokens); b++)
        CHECK(clear(c.max_blocks + b), c.rank, "counters of shared block %d are not 0", b);
    const uint32_t *arrived = (const uint32_t *)q.at(c.at.arrived);
    for (int t = 0; t < q.tokens; t++) {
        int awaited = c.shared > 0;
        for (int k = 0; k < layer.slots; k++) awaited += q.expert(t * layer.slots + k) >= 0;
        CHECK((int)arrived[t] == -awaited, c.rank, "token %d: arrived %d, not %d", t, (int)arrived[t], -awaited);
        CHECK(q.complete[t] == 0, c.rank, "entry %d of the list of complete tokens is not 0", t);
    }
    for (int t = q.tokens; t < (int)q.complete.size(); t++)
        CHECK(q.complete[t] == untouched<uint32_t>(), c.rank, "entry %d behind the list is written", t);
}

static void check_staged(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    if (!c.staged) return;
    for (int t = 0; t < q.tokens; t++) {
        const uint8_t *staged = q.at(c.at.x) + (size_t)t * c.hidden * 2;
        CHECK(memcmp(staged, &q.x[t * c.x_stride], (size_t)c.hidden * 2) == 0, c.rank, "token %d is not staged", t);
    }
}

void check_rows(made_up_rank &q) {
    for (void (*check)(made_up_rank &) : {check_experts, check_slots, check_cleared, check_staged})
        if (failure.empty()) check(q);
}
