/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a layer, and what a call of it brings. */
#include "layer.h"

#include "random.h"
#include "rules/ring.h"

#include <algorithm>
#include <cmath>

made_up_layer layer;

static int draw_ranks() { return chance(20) ? 1 : chance(90) ? between(2, 4) : between(5, FY_GPU_MAX_RANKS); }

/* Ring, steps and head are each rank's own, but equal on all of them. */
static void draw_sizes(fy_gpu_call &c) {
    c.ranks = layer.ranks;
    c.experts = layer.experts;
    c.slots = layer.slots;
    c.max_tokens = layer.max_tokens;
    c.hidden = layer.hidden;
    c.intermediate = 8 * between(1, 100);
    c.shared = chance(35) ? 8 * between(1, 60) : 0;
    int most_rows = layer.ranks * layer.max_tokens * layer.slots;
    c.max_blocks = (int)fy_most_blocks(most_rows, layer.experts);
    c.ring_blocks = chance(65) ? between(1, 24) : c.max_blocks + 1;
    c.mini_tiles = chance(85) ? between(1, 4) : between(FY_HEAD_SORTED - 4, FY_HEAD_SORTED + 6);
    c.head_tiles = c.all_head_tiles = c.mini_tiles * (layer.ranks > 1 ? 1 : between(1, 3));
    if (layer.ranks > 1 && c.mini_tiles <= FY_HEAD_SORTED)
        c.all_head_tiles = c.mini_tiles * std::min(layer.ranks + 1, FY_HEAD_SORTED / c.mini_tiles);
    c.ids_are_64 = chance(40);
    c.staged = layer.ranks > 1 || c.shared > 0;
    c.x_stride = layer.hidden + (chance(50) ? 8 * between(1, 5) : 0);
    c.out_stride = layer.hidden + (chance(50) ? 8 * between(1, 5) : 0);
    c.enter_timeout_ns = c.progress_timeout_ns = 1; /* time stands still here */
}

void layer_draw() {
    layer.ranks = draw_ranks();
    layer.experts = layer.ranks * between(1, 5);
    if (chance(3)) layer.experts = between(400, 2400); /* more than a block's threads */
    layer.slots = chance(12) ? 33 : between(1, 6);
    if (layer.slots > layer.experts && chance(50)) layer.slots = layer.experts;
    layer.max_tokens = chance(85) ? between(1, chance(50) ? 150 : 700) : between(1, 3);
    if (layer.slots > 6) layer.max_tokens = std::min(layer.max_tokens, 60);
    layer.hidden = 8 * (chance(90) ? between(1, 160) : between(160, 330));
    layer.sms = between(1, 6);
    layer.bad_ids = chance(20);
    layer.too_many = chance(8);
    layer.favoured = chance(50);
    layer.expert_rank.resize(layer.experts);
    for (int e = 0; e < layer.experts; e++) layer.expert_rank[e] = chance(75) ? e % layer.ranks : below(layer.ranks);
    fy_gpu_call call = {};
    draw_sizes(call);
    layer.rank.resize(layer.ranks); /* memory is kept from case to case */
    int summing = below(layer.ranks);
    for (int r = 0; r < layer.ranks; r++) {
        layer.rank[r].call = call;
        layer.rank[r].call.rank = r;
        layer.rank[r].choice = chance(50);
        layer.rank[r].signals = chance(25);
        layer.rank[r].sums = r == summing && chance(70);
    }
    layer_lay();
}

static int64_t draw_id() {
    const int64_t bad[] = {-2, layer.experts, INT32_MIN, INT32_MAX};
    if (layer.bad_ids && chance(2)) return bad[below(4)];
    if (chance(12)) return -1;
    return below(layer.favoured && chance(75) ? std::min(layer.experts, 3) : layer.experts);
}

/* Nobody may read the weight of a slot without expert; the others' sums are exact, and so is any order of them. */
void layer_draw_call() {
    for (made_up_rank &q : layer.rank) {
        q.tokens = chance(85) ? between(0, layer.max_tokens) : chance(50) ? 0 : layer.max_tokens;
        if (layer.too_many && chance(30)) q.tokens = chance(70) ? layer.max_tokens + between(1, 9) : -between(1, 9);
        for (size_t i = 0; i < q.id.size(); i++) {
            q.id[i] = draw_id();
            q.short_id[i] = (int32_t)q.id[i];
            if (q.call.ids_are_64 && layer.bad_ids && chance(1)) q.id[i] += (int64_t)1 << 32;
            q.weight[i] = q.expert((int)i) >= 0 ? (float)between(-4, 4) : NAN;
        }
        uint16_t salt = (uint16_t)draw();
        for (size_t i = 0; i < q.x.size(); i++) q.x[i] = (uint16_t)(31 * i + salt);
        std::fill(q.out.begin(), q.out.end(), untouched<uint16_t>());
        std::fill(q.shared_y.begin(), q.shared_y.end(), untouched<uint16_t>());
        std::fill(q.complete.begin(), q.complete.end(), untouched<uint32_t>());
        std::fill(q.expert_rows.begin(), q.expert_rows.end(), -1);
        memset(&q.load, UNTOUCHED, sizeof q.load);
        if (q.sums) memset(q.at(q.call.at.y), UNTOUCHED, q.symmetric.size() - q.call.at.y);
    }
}

std::string number_in_words(const char *name, int value) {
    return std::string(", ") + name + " " + std::to_string(value);
}

std::string layer_describe() {
    std::string text = "tokens";
    for (const made_up_rank &q : layer.rank) text += " " + std::to_string(q.tokens);
    auto add = [&](const char *name, int value) { text += number_in_words(name, value); };
    const fy_gpu_call &c = layer.rank[0].call;
    add("of at most", layer.max_tokens);
    add("experts", layer.experts);
    add("slots", layer.slots);
    add("hidden", layer.hidden);
    add("intermediate", c.intermediate);
    add("shared", c.shared);
    add("ring blocks", c.ring_blocks);
    add("tiles of a step", c.mini_tiles);
    add("of the head", c.all_head_tiles);
    add("multiprocessors", layer.sms);
    return text;
}
