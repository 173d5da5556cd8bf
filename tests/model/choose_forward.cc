/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warp of the forward that chooses tiles, after role_choose.cuh, whose tickets and looks it calls, and meanwhile
 * answers what both warpgroups post, after role_signal.cuh: h is stored some time after it is posted, before its
 * signal.
 */
#include "cuda/role_choose.cuh"
#include "kinds.h"
#include "layer.h"
#include "progress.h"
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

/* What the warp waits for: posts, and a phase of a barrier or a counter. */
struct awaited {
    fy_block *block;
    uint32_t left, parity; /* bits of the warpgroups that post more, and the parity of the next post of each */
    const uint64_t *barrier;
    uint32_t phase;
    fy_need need;
};

static bool is_posted(const awaited &a, int group) {
    return (a.left >> group & 1) && barrier_is_over(&a.block->posted[group], a.parity >> group & 1);
}

static bool is_over(const awaited &a) {
    if (a.barrier) return barrier_is_over(a.barrier, a.phase);
    return a.need.flag && *a.need.flag >= a.need.target;
}

static bool has_something(const void *object, uint32_t) {
    const awaited &a = *(const awaited *)object;
    return is_posted(a, 0) || is_posted(a, 1) || is_over(a);
}

/* Posts of either warpgroup or of both, as they have come. */
static void answer_posts(awaited &a) {
    fy_post posts[2];
    int count = 0;
    for (int g = 0; g < 2; g++) {
        if (!is_posted(a, g)) continue;
        a.parity ^= 1u << g;
        const fy_post post = a.block->post[g];
        if (post.kind == FY_END) {
            a.left &= ~(1u << g);
            continue;
        }
        posts[count++] = post;
        fy_barrier_arrive(&a.block->taken[g]);
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

/* Until the barrier's phase or the counter is there; without either, until there are no more posts. */
static void answer_until_over(awaited &a, const char *what) {
    bool forever = !a.barrier && !a.need.flag;
    while (forever ? a.left != 0 : !is_over(a)) {
        step();
        wait_until(has_something, &a, 0, what);
        answer_posts(a);
    }
    a.barrier = nullptr;
    a.need.flag = nullptr;
}

void choose_forward_role(int number_of_block, int) {
    const fy_gpu_call &c = layer.call;
    fy_block *block = fy_block_of(block_memory(number_of_block));
    fy_gpu_state *state = c.table.state;
    fy_tickets tickets = fy_tickets_open(c, c.table.unit, state->units, state->take_product);
    awaited a = {block, 3, 0, nullptr, 0, {nullptr, 0, 0}};
    for (int number = 0;; number++) {
        if (number > 0) {
            a.barrier = &block->begun, a.phase = (number - 1) & 1;
            answer_until_over(a, "a tile that begins");
        }
        fy_work w = fy_take_product(c, tickets);
        for (int i = 0; i < FY_TILE_NEEDS && w.kind != FY_END; i++) {
            a.need = fy_need_of(c, w, state->blocks, i);
            if (!a.need.flag || is_over(a)) continue;
            say("waits for %s: %u, wanted %u", name_of_site(a.need.site), *a.need.flag, a.need.target);
            answer_until_over(a, name_of_site(a.need.site));
        }
        a.need.flag = nullptr;
        block->work[number % FY_WORKS] = w;
        fy_barrier_arrive(&block->chosen);
        if (w.kind == FY_END) break;
    }
    answer_until_over(a, "a post of its block");
}
