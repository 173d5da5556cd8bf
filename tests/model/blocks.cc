/* SPDX-License-Identifier: Apache-2.0 */
/* The resident blocks of a case: how many, on which sides of the cache, with which workers. */
#include "cuda/role_choose_backward.cuh"
#include "cuda/role_load.cuh"
#include "cuda/role_load_backward.cuh"
#include "engine.h"
#include "layer.h"
#include "random.h"
#include "roles.h"

#include <cstdio>
#include <memory>

enum { SHARED_BYTES = 232448, SHARED_ALIGNMENT = 1024, MOST_BLOCKS = 40 };

enum pattern { ALL_0, ALL_1, FEW_1, RANDOM, PATTERNS = 5 }; /* of sides; random ones twice as often */

static uint8_t *shared_memory[MOST_BLOCKS];
static char description[100];

unsigned char *block_memory(int block) {
    if (!shared_memory[block]) shared_memory[block] = (uint8_t *)std::aligned_alloc(SHARED_ALIGNMENT, SHARED_BYTES);
    return shared_memory[block];
}

/* The real code: the threads that feed stages, and the one that takes tickets of a backward. */
static void load_role(int block, int) {
    if (layer.backward)
        fy_load_backward_role(layer.call, layer.back, block_memory(block));
    else if (layer.keep)
        fy_load_role<true>(layer.call, block_memory(block));
    else
        fy_load_role<false>(layer.call, block_memory(block));
}
static void choose_backward_role(int block, int) {
    fy_choose_backward_role(layer.call, layer.back, block_memory(block));
}

static void prepare_barriers(int number) {
    auto prepare_stages = [](auto *block) {
        for (int s = 0; s < FY_STAGES; s++) {
            fy_barrier_init(&block->full[s], 1);
            fy_barrier_init(&block->empty[s], 2);
        }
    };
    if (!layer.backward) {
        fy_block *block = fy_block_of(block_memory(number));
        for (int g = 0; g < 2; g++) {
            fy_barrier_init(&block->posted[g], 1); /* a warpgroup is one worker */
            fy_barrier_init(&block->taken[g], 1);
        }
        fy_open_choice(&block->chosen, &block->begun);
        return prepare_stages(block);
    }
    fy_backward_block *block = fy_backward_block_of(block_memory(number));
    prepare_stages(block);
    fy_open_choice(&block->chosen, &block->begun);
}

static int draw_resident() {
    int kind = below(100);
    if (layer.chains) return between(4, 8);
    if (layer.cut && chance(70)) return between(2, 8);
    return kind < 20 ? 1 : kind < 35 ? 2 : kind < 50 ? 3 : kind < 85 ? between(4, 12) : between(13, MOST_BLOCKS);
}

static void draw_sides() {
    int sides = layer.cut ? (int)RANDOM : below(PATTERNS);
    for (int i = 0; i < FY_GPU_MAX_SMS; i++)
        layer.side[i] = sides == ALL_0 ? 0 : sides == ALL_1 ? 1 : sides == FEW_1 ? i % 7 == 0 : below(2);
}

void blocks_add() {
    auto pull = layer.backward ? pull_backward_role : pull_forward_role;
    auto head = layer.backward ? pull_backward_head : pull_forward_head;
    auto product = layer.backward ? product_backward_role : product_forward_role;
    int resident = draw_resident();
    int apart = resident > 1 && chance(15) ? between(1, min(2, resident - 1)) : 0; /* blocks that only pull */
    int warps = between(1, 2);                                                     /* that pull, in each block */
    draw_sides();
    clear_workers();
    engine_clear(resident);
    for (int block = 0; block < resident; block++) {
        bool only_pulls = block < apart;
        prepare_barriers(block);
        if (!only_pulls) {
            add_worker("engine", block, 0, engine_role, true);
            add_worker("load", block, 0, load_role);
            add_worker("choose", block, 0, layer.backward ? choose_backward_role : choose_forward_role);
            for (int group = 0; group < 2; group++) add_worker("product", block, group, product);
        }
        int pulling = only_pulls ? between(1, 5) : apart > 0 ? 0 : warps;
        for (int warp = 0; warp < pulling; warp++) add_worker("pull", block, warp, pull);
        if (!only_pulls && apart > 0) add_worker("head", block, 0, head);
    }
    std::snprintf(description, sizeof description, "%d resident blocks, %d of them only pull, %d pulling warps",
                  resident, apart, warps);
}

const char *blocks_describe() { return description; }
