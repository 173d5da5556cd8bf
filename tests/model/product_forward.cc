/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warpgroup of consumers of the forward, after role_product.cuh, and the warp that signals for both, after
 * role_signal.cuh. Results are posted; h is stored some time after, before its signal.
 */
#include "cuda/role_load.cuh"
#include "engine.h"
#include "kinds.h"
#include "layer.h"
#include "progress.h"
#include "random.h"
#include "roles.h"

/* h of a tile: over that of another block only once all products that read it are over. */
static void store_h(const fy_post &post) {
    bool shared = fy_is_shared(post.kind);
    int block = post.row / ROWS_OF_BLOCK;
    for (int piece = 2 * post.column; piece < min(2 * post.column + 2, layer.pieces(shared)); piece++) {
        int &h = shared ? layer.h_shared.piece(block, piece) : layer.h_ring.piece(layer.ring_block(block), piece);
        if (!shared && h != NOTHING && h != block && progress.h_read[h] != fy_columns_of(layer.call, FY_FINISH))
            fail("h of block %d written over that of block %d, which %d tiles have read", block, h, progress.h_read[h]);
        h = block;
    }
}

/* `posts`: bits of the warpgroups that post more, and from bit 2 on the parity of the next post of each. */
static bool is_posted(const void *at, uint32_t posts) {
    for (int g = 0; g < 2; g++)
        if (posts >> g & 1 && barrier_is_over(&((const fy_block *)at)->posted[g], posts >> (2 + g) & 1)) return true;
    return false;
}

/* Until there is no more: of either warpgroup or of both, as they come. */
void signal_forward_role(int number_of_block, int warp) {
    pull_forward_head(number_of_block, warp);
    fy_block *block = fy_block_of(block_memory(number_of_block));
    uint32_t left = 3, parity = 0;
    while (left) {
        fy_post posts[2];
        int count = 0;
        step();
        wait_until(is_posted, block, left | parity << 2, "a post of its block");
        for (int g = 0; g < 2; g++) {
            if (!(left >> g & 1) || !fy_barrier_test(&block->posted[g], parity >> g & 1)) continue;
            parity ^= 1u << g;
            const fy_post post = block->post[g];
            if (post.kind == FY_END) {
                left &= ~(1u << g);
                continue;
            }
            posts[count++] = post;
            fy_barrier_arrive(&block->taken[g]);
        }
        for (int i = 0; i < count; i++) {
            step();
            if (fy_is_make(posts[i].kind)) store_h(posts[i]);
        }
        for (int i = 0; i < count; i++) {
            const fy_gpu_tables &table = layer.call.table;
            fy_add_relaxed_gpu(&(fy_is_make(posts[i].kind) ? table.made : table.sent)[posts[i].counter], 1);
        }
    }
}

/* This warpgroup's 64 rows of A, one step along the contraction. */
static void check_operand(const fy_work &w, int group, int k, const uint8_t *a) {
    int block = w.row / ROWS_OF_BLOCK + group;
    if (w.kind == FY_MAKE) {
        for (int row = block * ROWS_OF_BLOCK, r = 0; r < ROWS_OF_BLOCK; r++)
            if (tag_of_row(a, r) != row + r)
                fail("make of row %d, step %d: x is that of row %d", row + r, k, tag_of_row(a, r));
    } else if (!fy_is_make(w.kind) && tag_of_piece(a) != block) {
        fail("finish of block %d, step %d: h is that of block %d", block, k, tag_of_piece(a));
    }
}

void product_forward_role(int number_of_block, int group) {
    pull_forward_head(number_of_block, group);
    uint8_t *shared = block_memory(number_of_block);
    fy_block *block = fy_block_of(shared);
    int stage = 0;
    uint32_t parity = 0, posts = 0;
    auto post = [&](const fy_post &of) {
        if (posts > 0) fy_barrier_wait(&block->taken[group], (posts - 1) & 1);
        block->post[group] = of;
        fy_barrier_arrive(&block->posted[group]);
        posts++;
    };
    for (int number = 0;; number++) {
        fy_barrier_wait(&block->full[stage], parity);
        const fy_work w = block->work[number % FY_WORKS];
        if (w.kind == FY_END) break;
        bool active = group * ROWS_OF_BLOCK < w.rows;
        if (group == 0) {
            say("begins %s, row %d, column tile %d", name_of_kind(w.kind), w.row, w.column);
            progress.begun[{w.kind, w.counter, 0, 0, w.column}]++;
        }
        int last = -1; /* a stage is emptied when the step after it has begun */
        for (int k = 0; k < w.depth; k++) {
            fy_barrier_wait(&block->full[stage], parity);
            if (active) check_operand(w, group, k, fy_stage_a(shared, stage) + group * (FY_A_BYTES / 2));
            if (!active) fy_barrier_arrive(&block->empty[stage]);
            if (last >= 0) fy_barrier_arrive(&block->empty[last]);
            if (active) last = stage;
            if (++stage == FY_STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        if (!active) continue;
        fy_barrier_arrive(&block->empty[last]);
        if (w.kind == FY_MAKE) progress.x_read[w.counter + group]++;
        if (w.kind == FY_FINISH) progress.h_read[w.counter + group]++;
        post({w.kind, w.column, w.load_row + group * ROWS_OF_BLOCK, w.counter + group, w.row + group * ROWS_OF_BLOCK,
              min(w.rows - group * ROWS_OF_BLOCK, (int)ROWS_OF_BLOCK)});
    }
    post({FY_END, 0, 0, 0, 0, 0});
}
