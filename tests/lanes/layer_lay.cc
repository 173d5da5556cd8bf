/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of every rank, laid as the host files lay it (symmetric.c, memory.c), with a guard behind each part. */
#include "layer.h"

#include "rules/ring.h"

/* A guard is so long that checks find most of what is written behind a part, before anything else breaks. */
enum { GUARD = 8192, GRAIN = 256 };

template <class T>
static T *lay(std::vector<T> &memory, int64_t count) {
    memory.assign((size_t)(count + GUARD), untouched<T>());
    return memory.data();
}

static fy_gpu_symmetric lay_symmetric(const fy_gpu_call &c) {
    fy_gpu_symmetric at = {};
    auto take = [&](int64_t bytes) {
        uint64_t begin = at.bytes;
        at.bytes += fy_divide_up(bytes + GUARD, GRAIN) * GRAIN;
        return begin;
    };
    int64_t all = (int64_t)c.max_tokens * c.slots;
    at.abort = take(sizeof(uint32_t));
    at.flag = take(c.ranks * sizeof(uint32_t));
    for (int parity = 0; parity < 2; parity++) {
        at.header[parity] = take(c.ranks * sizeof(fy_gpu_header));
        at.counts[parity] = take((int64_t)c.ranks * c.experts * sizeof(int32_t));
        at.slots[parity] = take(all * sizeof(fy_gpu_slot));
    }
    at.arrived = take(c.max_tokens * sizeof(uint32_t));
    at.x = take((int64_t)c.max_tokens * c.hidden * 2);
    at.y = at.bytes; /* the last one, and not there where nobody sums */
    return at;
}

static void lay_experts(made_up_rank &q) {
    fy_gpu_call &c = q.call;
    q.local_expert.clear();
    q.expert_local.assign(c.experts, -1);
    for (int e = 0; e < c.experts; e++) {
        if (layer.expert_rank[e] != c.rank) continue;
        q.expert_local[e] = (int)q.local_expert.size();
        q.local_expert.push_back(e);
    }
    c.local_experts = (int)q.local_expert.size();
    c.table.expert_rank = layer.expert_rank.data();
    c.table.expert_local = q.expert_local.data();
    c.table.local_expert = q.local_expert.data();
}

static void lay_tables(made_up_rank &q) {
    fy_gpu_call &c = q.call;
    fy_gpu_tables &t = c.table;
    int64_t slots = (int64_t)c.max_tokens * c.slots, chunks = fy_divide_up(slots, FY_CHUNK);
    int64_t counters = c.max_blocks + fy_blocks_of_rows(c.max_tokens);
    q.state = {};
    q.state.bad_slot = untouched<uint32_t>();
    t.state = &q.state;
    t.histogram = lay(q.histogram, chunks * c.experts);
    t.first_block = lay(q.first_block, c.local_experts + 1);
    t.first_tile = lay(q.first_tile, c.local_experts + 1);
    t.expert_rows = lay(q.rows, c.local_experts);
    t.base = lay(q.base, (int64_t)c.local_experts * c.ranks);
    t.macro_tile = lay(q.macro_tile, fy_divide_up(c.max_blocks, c.ring_blocks) + 1);
    t.tile = lay(q.tile, c.max_blocks);
    t.unit = lay(q.unit, 2 * c.max_blocks + 4);
    t.source = lay(q.source, (int64_t)c.max_blocks * FY_BLOCK_ROWS);
    t.slot_row = lay(q.slot_row, c.ranks * slots);
    t.complete = lay(q.complete, c.max_tokens);
    t.pulled = lay(q.pulled, counters);
    t.made = lay(q.made, counters);
    t.sent = lay(q.sent, counters);
    t.shared_y = lay(q.shared_y, q.sums ? (int64_t)c.max_tokens * c.hidden : 0);
}

static void lay_callers(made_up_rank &q) {
    fy_gpu_call &c = q.call;
    int slots = c.max_tokens * c.slots;
    c.page = &q.page;
    q.page = {};
    c.tokens = &q.tokens;
    q.id.assign(slots, -1);
    q.short_id.assign(slots, -1);
    c.ids = c.ids_are_64 ? (const void *)q.id.data() : q.short_id.data();
    q.weight.assign(slots, 0);
    c.weights = q.weight.data();
    c.x = lay(q.x, c.max_tokens * c.x_stride);
    c.out = lay(q.out, q.sums ? c.max_tokens * c.out_stride : 0);
    c.expert_rows = lay(q.expert_rows, c.experts);
    c.load = &q.load;
}

void layer_lay() {
    fy_gpu_symmetric at = lay_symmetric(layer.rank[0].call);
    for (made_up_rank &q : layer.rank) {
        const fy_gpu_call &c = q.call;
        uint64_t y_bytes = q.sums ? (uint64_t)c.max_tokens * c.slots * c.hidden * 2 : 0;
        q.symmetric.assign(at.bytes + y_bytes + GUARD, UNTOUCHED);
        memset(q.at(at.abort), 0, sizeof(uint32_t));
        memset(q.at(at.flag), 0, c.ranks * sizeof(uint32_t));
    }
    for (made_up_rank &q : layer.rank) {
        q.call.at = at;
        for (int r = 0; r < layer.ranks; r++) q.call.peer[r] = layer.rank[r].symmetric.data();
        lay_experts(q);
        lay_tables(q);
        lay_callers(q);
    }
}
