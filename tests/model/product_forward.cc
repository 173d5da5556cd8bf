/* SPDX-License-Identifier: Apache-2.0 */
/* A warpgroup of consumers of the forward, after role_product.cuh. Results are posted (choose_forward.cc). */
#include "cuda/block.cuh"
#include "engine.h"
#include "kinds.h"
#include "layer.h"
#include "progress.h"
#include "random.h"
#include "roles.h"

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
