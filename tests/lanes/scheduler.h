/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of blocks as coroutines, and who runs next. A lane runs until it has to meet others (a warp's functions, a
 * block's barrier), rests, or touches memory that blocks share, where it gives way now and then. Next is whoever has
 * been ready longest or, in another manner, anyone who is ready. Memory is in order: this finds orders of steps that
 * break the rules, not orders of memory that are too weak.
 */
#ifndef FERRY_LANES_SCHEDULER_H
#define FERRY_LANES_SCHEDULER_H

#include <cstdint>
#include <functional>
#include <string>

/* The first thing that was wrong in this case; empty: nothing. */
extern std::string failure;
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern uint64_t turns_run; /* of this case */

/* Called by a lane. */
void step();             /* before an access of shared memory: others may run */
void hold_up();          /* before a ticket is taken: some cases hold the lane up */
void hold_for(int most); /* for at most so many turns */
void rest();             /* others run first */
int current_block();

/* Called by all lanes of a block that have not returned. */
void meet_block();
/* Called by the lanes of `mask` for the same purpose. */
void meet_warp(unsigned mask, const char *purpose);
/* What each of the warp's 32 lanes has brought; stays until the lane's next exchange. */
const uint64_t *exchange(unsigned mask, uint64_t mine, const char *purpose);

/* A launch begins: what its lanes run, by threadIdx and blockIdx. How much they give way is drawn. */
void begin_launch(int grid, int threads, const std::function<void()> &body);
void begin_block(int block);
int blocks_not_ended();

/*
 * Until all lanes of the blocks that have begun are at their end and `more` is false. `more` (none: false) is asked now
 * and then, and may begin blocks; while it gives *progress the same number for long, and lanes do not end, nobody gets
 * on, which is a failure.
 */
void run_lanes(const std::function<bool(uint64_t *progress)> &more = nullptr);

/* A launch whose blocks need nothing from each other: one at a time, as there is one shared memory, in any order. */
void launch(int grid, int threads, const std::function<void()> &body);

#endif
