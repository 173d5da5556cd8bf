/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket_model: does every call end, with every tile made once from the right rows, in whatever order its blocks run?
 *
 * The order of products in a call of the CUDA backend comes from tickets, counters in memory and a ring that is used
 * over and over (src/cuda/tickets.cuh, docs/gpu.md). This program runs that code on the host, without a GPU: a case is
 * a small made-up layer, one rank's forward or backward of it, some resident blocks on random sides of the cache, and a
 * random order of all their steps. It fails when nobody can go on (a deadlock), a tile is made twice or not at all, or
 * something in the ring is overwritten before its last reader or read before it is there.
 *
 * Real code, included from src/cuda: tickets.cuh; the loading threads and the backward's choosing one (role_load.cuh,
 * role_load_backward.cuh, role_choose_backward.cuh), and what a forward's tiles are and wait for (role_choose.cuh); the
 * lists of tickets, what units need, places and tiles (role_schedule*.cuh, role_list.cuh, tiles.cuh); the waits and
 * looks of pulls (role_pull*.cuh); the rules.
 * Written again: what a warp or a block does together (pull_*.cc, choose_forward.cc, product_*.cc, parts of
 * layer_*.cc), the copy engine (engine.cc), and what touches the hardware (standin/, whose files stand for those of the
 * same name).
 * Not modelled: sums of tokens and the launches of a forward's schedule, which lane_model has (tests/lanes); several
 * ranks and pushes to them, aborts and deadlines, the caller's words of ready gradients, values, and memory that is not
 * in order: a fence that is missing is not seen.
 *
 * Read scheduler.h first, then memory.h, layer.h, roles.h and progress.h.
 */
#include "arguments.h"
#include "layer.h"
#include "progress.h"
#include "random.h"
#include "roles.h"
#include "scheduler.h"

#include <chrono>
#include <cstdio>

enum { MOST_PRINTED = 5 };

static bool run_case(uint64_t seed) {
    seed_random(seed);
    failure.clear();
    layer.backward = chance(60);
    layer_draw();
    layer.backward ? layer_lay_backward() : layer_lay_forward();
    progress_clear();
    blocks_add();
    if (failure.empty()) run_workers(layer.chains);
    if (failure.empty()) progress_judge();
    return failure.empty();
}

static void print_case(uint64_t seed) {
    std::printf("case %llu: %s\n    %s\n    %s\n", (unsigned long long)seed,
                failure.empty() ? "nothing is wrong" : failure.c_str(), layer_describe().c_str(), blocks_describe());
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    arguments a = {"ticket_model", 20000, &verbose};
    if (!read_arguments(argc, argv, a)) return 2;
    if (a.alone) {
        run_case(a.one);
        print_case(a.one);
        return !failure.empty();
    }
    auto begin = std::chrono::steady_clock::now();
    auto passed = [&]() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    uint64_t ran = 0, failed = 0, several = 0, steps = 0;
    for (; a.seconds > 0 ? passed() < a.seconds : ran < a.cases; ran++) {
        uint64_t number = (a.seed << 32) + ran;
        if (!run_case(number) && failed++ < MOST_PRINTED) print_case(number);
        several += layer.state.macrobatches > 1;
        steps += steps_run;
    }
    std::printf("ticket_model: %llu cases ran, %llu failed; %llu had several macrobatches, %.1e steps, %.0f s\n",
                (unsigned long long)ran, (unsigned long long)failed, (unsigned long long)several, (double)steps,
                passed());
    return failed > 0;
}
