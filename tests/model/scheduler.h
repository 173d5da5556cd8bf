/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who runs next. A worker is one thread of the device that matters (a loading or choosing thread, a warpgroup, a
 * pulling warp, a copy engine), as a coroutine. Before every access of shared memory it calls step(): then any worker
 * that is not waiting may be next. Which one is drawn, in several manners, because a good mixture of all finds little:
 * some defects need a worker that is held up for long while all others run. Memory is in order: this finds orders of
 * steps that break the rules, not orders of memory that are too weak.
 */
#ifndef FERRY_MODEL_SCHEDULER_H
#define FERRY_MODEL_SCHEDULER_H

#include <cstdint>
#include <string>

/* The first thing that was wrong in this case; empty: nothing. */
extern std::string failure;
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern bool verbose;
void say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* with -v alone */

/* Workers of the next run. `endless`: it need not end, like a copy engine that waits for orders. */
void clear_workers();
void add_worker(const char *name, int block, int group, void (*body)(int block, int group), bool endless = false);

/* Until all have ended, nobody can go on, or something failed. `often`: whether hold_up does something often. */
void run_workers(bool often);
extern uint64_t steps_run; /* of this run */

/* For workers: */
int current_block();
void step();
void hold_up(); /* perhaps this worker does nothing for a while */
void wait_until(bool (*over)(const void *object, uint32_t value), const void *object, uint32_t value, const char *what);

#endif
