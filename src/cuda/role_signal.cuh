/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signals of the forward's consumers. Before others are told of h its copy has to end, and a fence waits for the
 * stores of the whole multiprocessor, 2,000 clocks; a warpgroup that waited for it would multiply nothing meanwhile.
 * So warpgroups post what they have staged or stored and go on, and until the products end the choosing warp
 * (role_choose.cuh) answers: it stores h, frees the buffer and signals, with the same fence where both have posted.
 * Reads: post[] and staged h in shared memory; source[row].  Writes: h, by the copy engine.
 * Waits on: posted, inside the block; its own copies.
 * Publishes: taken, when the post is read and the copy engine has read the buffer; made[block] when a column tile of h
 *            is written; sent[block] for each column tile of y, and by whoever completes a block arrived[token] of each
 *            of its rows at the owner.
 * Registers: the producer warpgroup's 120.
 */
#ifndef FERRY_CUDA_ROLE_SIGNAL_CUH
#define FERRY_CUDA_ROLE_SIGNAL_CUH

#include "cuda/gate_up.cuh"
#include "cuda/kind.cuh"
#include "cuda/role_push.cuh"
#include "cuda/trace.cuh"

enum { FY_POST_REST_NS = 256 }; /* between two looks at the posts */

/* Bits of the two warpgroups: which post more; the parity of the next post. */
typedef struct fy_signals {
    uint32_t left, parity;
} fy_signals;

/* Answers what is posted. Lane g is warpgroup g's; both posts share the fences. False: there was nothing. */
FY_DEVICE bool fy_answer_posts(const fy_gpu_call &c, uint8_t *shared, fy_signals &s) {
    fy_block *block = fy_block_of(shared);
    int lane = threadIdx.x & 31, g = lane & 1;
    bool mine = lane < 2 && (s.left >> g & 1) && fy_barrier_test(&block->posted[g], s.parity >> g & 1);
    uint32_t got = __ballot_sync(0xffffffffu, mine);
    if (got == 0) return false;
    s.parity ^= got;
    fy_trace_begin(0, -1);
    fy_post p = {FY_END, 0, 0, 0, 0, 0};
    if (mine) p = block->post[g];
    bool last = mine && p.kind == FY_END, make = mine && fy_is_make(p.kind);
    s.left &= ~__ballot_sync(0xffffffffu, last);
    if (mine && !last && !make) fy_barrier_arrive(&block->taken[g]);
    if (make) {
        const CUtensorMap *map = p.kind == FY_MAKE ? &c.routed.h_short : &c.shared_expert.h_short;
        fy_store_pieces(map, fy_shared_address(fy_group_buffer(shared, g)), p.column * FY_HALF_N, p.load_row);
        fy_store_wait_read<0>();
        fy_barrier_arrive(&block->taken[g]);
        fy_store_wait_written();
        fy_fence_async_global();
    }
    __syncwarp();
    uint32_t before = 0;
    if (mine && !last) {
        fy_fence_gpu();
        if (make)
            fy_add_relaxed_gpu(&c.table.made[p.counter], 1);
        else
            before = atomicAdd(&c.table.sent[p.counter], 1u) + 1;
    }
    uint32_t due = __ballot_sync(0xffffffffu, before == (uint32_t)fy_parts(c.hidden, FY_TILE_N));
    if (due != 0) { /* what the others have released is then before what every lane tells */
        fy_fence_sys();
        __syncwarp();
        fy_fence_sys();
    }
    for (; due; due &= due - 1) {
        int of = __ffs(due) - 1;
        fy_tell_owners(c, c.at.arrived, __shfl_sync(0xffffffffu, p.counter, of), __shfl_sync(0xffffffffu, p.row, of),
                       __shfl_sync(0xffffffffu, p.rows, of), lane);
    }
    fy_trace_end(0, FY_MARK_SIGNAL);
    return true;
}

/* Until the warpgroups post no more. */
FY_DEVICE void fy_signal_role(const fy_gpu_call &c, uint8_t *shared, fy_signals &s) {
    while (s.left)
        if (!fy_answer_posts(c, shared, s)) __nanosleep(FY_POST_REST_NS);
}

#endif
