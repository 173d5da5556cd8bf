/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The made-up layer of a case: a small random shape, who has which expert, and for every rank of it the memory that a
 * call finds. A case makes a few calls, each with tokens and ids of its own.
 */
#ifndef FERRY_LANES_LAYER_H
#define FERRY_LANES_LAYER_H

#include "cuda/call.h"

#include <string>
#include <vector>

/* What memory holds before anybody has written there. A BF16 or F32 of these bytes is a NaN. */
enum { UNTOUCHED = 0xff };

template <class T>
T untouched() {
    T value;
    memset(&value, UNTOUCHED, sizeof value);
    return value;
}

struct made_up_rank {
    /* What the kernels are told, the numbers that they share, and what the host is told. */
    fy_gpu_call call;
    fy_gpu_state state;
    fy_gpu_page page;

    /* The caller's. */
    int32_t tokens;
    std::vector<int64_t> id; /* as passed, and once more in 32 bits */
    std::vector<int32_t> short_id, expert_rows;
    std::vector<float> weight;
    std::vector<uint16_t> x, out;
    ferry_load load;

    bool choice;  /* its tiles are chosen */
    bool signals; /* its posts are tried */
    bool sums;    /* its sums are tried: only then there is room for result rows */

    std::vector<uint8_t> symmetric;
    std::vector<int32_t> histogram, expert_local, local_expert, first_block, first_tile, rows, base, macro_tile,
        slot_row;
    std::vector<fy_gpu_tile> tile;
    std::vector<fy_gpu_unit> unit;
    std::vector<fy_gpu_source> source;
    std::vector<uint32_t> complete, pulled, made, sent;
    std::vector<uint16_t> shared_y;

    uint8_t *at(uint64_t offset) { return symmetric.data() + offset; }
    /* Tokens that the call works on. */
    int worked() const { return tokens < 0 || tokens > call.max_tokens ? 0 : tokens; }
    /* Expert of a slot, -1: none. */
    int expert(int slot) const { return id[slot] < 0 || id[slot] >= call.experts ? -1 : (int)id[slot]; }
};

struct made_up_layer {
    int ranks, experts, slots, max_tokens, hidden;
    int sms;                          /* of each device: the launches' blocks */
    bool bad_ids, too_many, favoured; /* may occur; favoured: most slots want a few experts */
    std::vector<int32_t> expert_rank;
    std::vector<made_up_rank> rank;
};

extern made_up_layer layer;

void layer_draw();      /* the shape */
void layer_lay();       /* memory of every rank */
void layer_draw_call(); /* tokens, ids and weights of the next call */
std::string layer_describe();
std::string number_in_words(const char *name, int value); /* ", name value" */

#endif
