/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Result rows arrive, in any order, while warps collect complete tokens and sum. Values are small integers, so that
 * every sum is exact; what has not arrived is a NaN.
 */
#include "checks.h"

#include "cuda/role_collect.cuh"
#include "cuda/role_sum.cuh"
#include "random.h"

struct result_row {
    int token, slot; /* slot -1: the shared expert's */
};

static std::vector<result_row> rows_to_come; /* the next one last */

static int result_value(int token, int slot, int column) { return (token + 3 * slot + column / 8) % 8; }

static void draw_arrivals(const made_up_rank &q) {
    rows_to_come.clear();
    for (int t = 0; t < q.tokens; t++) {
        if (q.call.shared > 0) rows_to_come.push_back({t, -1});
        for (int k = 0; k < layer.slots; k++)
            if (q.expert(t * layer.slots + k) >= 0) rows_to_come.push_back({t, k});
    }
    shuffle(rows_to_come);
}

static void arrive(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    result_row r = rows_to_come.back();
    rows_to_come.pop_back();
    uint16_t *y = (uint16_t *)q.at(c.at.y) + ((int64_t)r.token * c.slots + r.slot) * c.hidden;
    if (r.slot < 0) y = c.table.shared_y + (int64_t)r.token * c.hidden;
    for (int h = 0; h < c.hidden; h++) y[h] = fy_bf16_from_f32((float)result_value(r.token, r.slot, h));
    ((uint32_t *)q.at(c.at.arrived))[r.token]++;
}

/* Of a block's warps one collects; each sums when it has nothing else to do. */
static void run_warp(const fy_gpu_call &c, int collecting) {
    if ((int)threadIdx.x / 32 == collecting) return fy_collect_role(c), fy_sum_role(c);
    if (lane_number() == 0) hold_for(20000); /* it pulls or multiplies */
    __syncwarp();
    fy_sum_role(c);
}

static void run_blocks(made_up_rank &q) {
    const fy_gpu_call &c = q.call;
    int grid = between(1, 9), resident = between(1, grid), warps = between(1, 5), begun = 0;
    int collecting = below(warps), burst = chance(20) ? 1000 : between(1, 40);
    begin_launch(grid, 32 * warps, [&] { run_warp(c, collecting); });
    run_lanes([&](uint64_t *progress) {
        for (int n = below(burst + 1); n > 0 && !rows_to_come.empty(); n--) arrive(q);
        while (begun < grid && blocks_not_ended() < resident) begin_block(begun++);
        if ((int)q.state.listed > q.tokens) fail("rank %d: a token is listed twice", c.rank);
        *progress = rows_to_come.size() + ((uint64_t)q.state.listed << 20) + ((uint64_t)q.state.take_sum << 40);
        return !rows_to_come.empty() || begun < grid;
    });
}

static void check_list(const made_up_rank &q) {
    std::vector<int> listed(q.tokens);
    CHECK((int)q.state.listed == q.tokens, q.call.rank, "%u tokens of %d are listed", q.state.listed, q.tokens);
    for (int i = 0; i < q.tokens; i++) {
        int token = (int)q.complete[i] - 1;
        CHECK(token >= 0 && token < q.tokens && listed[token]++ == 0, q.call.rank,
              "entry %d of the list is token %d once more, or beyond", i, token);
    }
    for (size_t i = (size_t)q.tokens; i < q.complete.size(); i++)
        CHECK(q.complete[i] == untouched<uint32_t>(), q.call.rank, "entry %d behind the list is written", (int)i);
}

static float sum_of(const made_up_rank &q, int token, int column) {
    float sum = q.call.shared > 0 ? (float)result_value(token, -1, column) : 0.0f;
    for (int k = 0; k < layer.slots; k++) {
        int slot = token * layer.slots + k;
        if (q.expert(slot) >= 0) sum += q.weight[slot] * (float)result_value(token, k, column);
    }
    return sum;
}

static void check_out(const made_up_rank &q) {
    int64_t stride = q.call.out_stride, end = q.tokens * stride;
    for (int t = 0; t < q.tokens; t++)
        for (int h = 0; h < (int)stride; h++) {
            bool gap = h >= layer.hidden;
            uint16_t seen = q.out[t * stride + h];
            static uint16_t expected; /* of eight columns alike */
            if (h % 8 == 0) expected = gap ? untouched<uint16_t>() : fy_bf16_from_f32(sum_of(q, t, h));
            CHECK(seen == expected, q.call.rank, "out of token %d, column %d: %04x, not %04x", t, h, seen, expected);
        }
    for (size_t i = (size_t)end; i < q.out.size(); i++)
        CHECK(q.out[i] == untouched<uint16_t>(), q.call.rank, "element %d behind out is written", (int)i);
}

void run_sums(made_up_rank &q) {
    draw_arrivals(q);
    run_blocks(q);
    if (failure.empty()) check_list(q);
    if (failure.empty()) check_out(q);
}
