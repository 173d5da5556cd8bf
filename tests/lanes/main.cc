/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_model: does the schedule of a call, lane by lane, give the right tables, is every tile chosen once and in time,
 * are posts answered right, and is every token summed once?
 *
 * Warps and blocks of the CUDA backend's forward sort slots, lay tiles and tickets, choose tiles, signal what consumers
 * post, list complete tokens and sum them together (docs/gpu.md). This program runs that code on the host, without a
 * GPU, one coroutine for every thread. A case is a small made-up layer of up to 16 ranks and a few calls of it; what
 * the calls leave is compared with what plain loops over the callers' ids give.
 *
 * Real code, included from src/cuda: the launches' roles (role_schedule.cuh, role_wait.cuh, role_place.cuh), tickets
 * and the warp that chooses tiles (tickets.cuh, role_choose.cuh), posts and who answers them (role_product.cuh,
 * role_signal.cuh), collecting and summing (role_collect.cuh, role_sum.cuh), waits (wait.cuh); the rules.
 * Written again: the launches' few lines around the roles (schedule.cc, sums.cc), what begins the chosen tiles
 * (choice.cc), what consumers do around their posts and the copy engine (signals.cc), functions of a warp or block
 * (together.h), and what touches the hardware (standin/ here and in tests/model, whose files stand for those of the
 * same name).
 * Not modelled: pulls, products and what they stage, pushes, the backward, aborts but of the choice, deadlines, a
 * launch that begins before the one before it has ended, blocks of the schedule that run at the same time, and memory
 * that is not in order: a fence that is missing is not seen, of ordinary stores or of the copy engine's.
 *
 * Read scheduler.h first, then layer.h and checks.h.
 */
#include "arguments.h"
#include "checks.h"
#include "random.h"
#include "scheduler.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <unistd.h>

enum { MOST_PRINTED = 5, CALLS = 2 };

static uint64_t number_of_case;
static struct {
    /* Ranks' calls: several, a head of both kinds; tiles chosen, posts, sums. */
    uint64_t macrobatches, sorted, chose, signalled, summed;
} had;

static void note(const made_up_rank &q) {
    had.macrobatches += q.state.macrobatches > 1;
    had.sorted += layer.ranks > 1 && q.call.all_head_tiles <= FY_HEAD_SORTED && q.state.all_head_tiles > 1;
    had.chose += q.choice && q.state.units > 0;
    had.signalled += q.signals && q.state.blocks > 0;
    had.summed += q.sums && q.tokens > 0;
}

static void run_call() {
    layer_draw_call();
    run_schedule();
    bool skipped = call_is_skipped();
    for (made_up_rank &q : layer.rank) {
        if (failure.empty() && (q.state.skip != 0) != skipped) fail("rank %d: skip is %u", q.call.rank, q.state.skip);
        for (void (*check)(made_up_rank &) : {check_rows, check_tiles, check_tickets})
            if (failure.empty() && !skipped) check(q);
        if (failure.empty()) check_reports(q);
        if (failure.empty() && !skipped && q.choice) run_choice(q);
        if (failure.empty() && !skipped && q.signals) run_signals(q);
        if (failure.empty() && !skipped && q.sums) run_sums(q);
        if (!skipped) note(q);
    }
}

static bool run_case(uint64_t seed) {
    number_of_case = seed;
    seed_random(seed);
    failure.clear();
    turns_run = 0;
    layer_draw();
    for (int call = 0; call < CALLS && failure.empty(); call++) run_call();
    return failure.empty();
}

static void print_case(const char *result) {
    std::printf("case %llu: %s\n    %s\n    again: lane_model --case %llu\n", (unsigned long long)number_of_case,
                result, layer_describe().c_str(), (unsigned long long)number_of_case);
    std::fflush(stdout);
}

static void print_failure() { print_case(failure.empty() ? "nothing is wrong" : failure.c_str()); }

/* Whatever is left of the process: the number is enough. */
static void crash(int) {
    char text[120];
    int length = std::snprintf(text, sizeof text, "case %llu: a crash\n    again: lane_model --case %llu\n",
                               (unsigned long long)number_of_case, (unsigned long long)number_of_case);
    _exit(write(STDOUT_FILENO, text, (size_t)length) == length ? 1 : 2);
}

int main(int argc, char **argv) {
    arguments a = {"lane_model", 400, nullptr};
    if (!read_arguments(argc, argv, a)) return 2;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(number, crash);
    if (a.alone) {
        run_case(a.one);
        print_failure();
        return !failure.empty();
    }
    auto begin = std::chrono::steady_clock::now();
    auto passed = [&]() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    uint64_t ran = 0, failed = 0;
    double turns = 0;
    for (; a.seconds > 0 ? passed() < a.seconds : ran < a.cases; ran++) {
        if (!run_case((a.seed << 32) + ran) && failed++ < MOST_PRINTED) print_failure();
        turns += (double)turns_run;
    }
    std::printf("lane_model: %llu cases ran, %llu failed; of the ranks' calls %llu had several macrobatches, %llu a "
                "sorted head, %llu choices, %llu signals, %llu sums; %.1e turns, %.0f s\n",
                (unsigned long long)ran, (unsigned long long)failed, (unsigned long long)had.macrobatches,
                (unsigned long long)had.sorted, (unsigned long long)had.chose, (unsigned long long)had.signalled,
                (unsigned long long)had.summed, turns, passed());
    return failed > 0;
}
