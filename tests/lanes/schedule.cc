/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of the schedule, as kernel_schedule.cuh has them. Ranks run in any order, a launch of all before the
 * next one. */
#include "checks.h"

#include "cuda/role_place.cuh"
#include "cuda/role_wait.cuh"
#include "random.h"

static void run_rank_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    static std::vector<fy_warp_rows> memory; /* aligned */
    memory.resize(fy_parts((int)fy_rank_bytes(c.experts), sizeof memory[0]) + 1);
    memset(memory.data(), 0xff, memory.size() * sizeof memory[0]);
    int chunks = max(1, (int)fy_divide_up((int64_t)c.max_tokens * c.slots, FY_CHUNK));
    int staging = c.staged ? layer.sms : 0;
    launch(chunks + staging, FY_CHUNK, [&c, chunks] { fy_rank_role(c, chunks, (uint8_t *)memory.data()); });
}

static void run_count_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    static std::vector<int32_t> histogram;
    histogram.assign(c.experts, -1);
    launch(layer.sms, FY_CHUNK, [&c] { fy_count_role(c, histogram.data()); });
}

/* Two halves of one launch; here no rank waits before all have published. */
static void run_publish(made_up_rank &q) {
    launch(1, 1024, [&q] { fy_publish_role(q.call); });
}

static void run_wait(made_up_rank &q) {
    launch(1, 1024, [&q] { fy_wait_role(q.call); });
}

static void run_place_launch(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    launch(layer.sms + fy_lay_blocks(c.local_experts) + 2, FY_PLACE_THREADS, [&c] {
        if (!c.table.state->skip) fy_place_block(c);
    });
}

void run_schedule() {
    int first = below(layer.ranks);
    for (void (*launch_of)(made_up_rank &) :
         {run_count_launch, run_rank_launch, run_publish, run_wait, run_place_launch})
        for (int r = 0; r < layer.ranks; r++) launch_of(layer.rank[(first + r) % layer.ranks]);
}

bool call_is_skipped() {
    for (const made_up_rank &q : layer.rank)
        if (q.worked() != q.tokens) return true;
    return false;
}
