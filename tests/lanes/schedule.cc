/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of the schedule, as kernel_schedule.cuh has them. Ranks run in any order, a launch of all before the
 * next one. */
#include "checks.h"

#include "cuda/role_schedule.cuh"
#include "random.h"

static void run_rank_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    static std::vector<int32_t> before;
    before.assign(c.experts, -1);
    int chunks = max(1, (int)fy_divide_up((int64_t)c.max_tokens * c.slots, FY_CHUNK));
    int staging = c.staged ? layer.sms : 0;
    launch(chunks + staging, FY_CHUNK, [&c, chunks] { fy_rank_role(c, chunks, before.data()); });
}

static void run_count_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    static std::vector<int32_t> histogram;
    histogram.assign(c.experts, -1);
    launch(layer.sms, FY_CHUNK, [&c] { fy_count_role(c, histogram.data()); });
}

static void run_wait_launch(made_up_rank &q) {
    launch(1, 1024, [&q] { fy_wait_role(q.call); });
}

static void run_place_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    launch(layer.sms + 2, FY_PLACE_THREADS, [&c] {
        if (c.table.state->skip) return;
        if (blockIdx.x == gridDim.x - 1) return fy_list_role(c);
        if (blockIdx.x == gridDim.x - 2) return fy_report_role(c);
        fy_place_role(c, (int)gridDim.x - 2);
    });
}

void run_schedule() {
    int first = below(layer.ranks);
    for (void (*launch_of)(made_up_rank &) : {run_count_launch, run_rank_launch, run_wait_launch, run_place_launch})
        for (int r = 0; r < layer.ranks; r++) launch_of(layer.rank[(first + r) % layer.ranks]);
}

bool call_is_skipped() {
    for (const made_up_rank &q : layer.rank)
        if (q.worked() != q.tokens) return true;
    return false;
}
