/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How evenly rows fall on experts and ranks: the numbers of ferry_load from the counts of experts, equal bits on host
 * and device. Every backend fills the struct by these functions, in parallel or, where the counts are few, by
 * fy_load_of.
 */
#ifndef FERRY_RULES_LOAD_H
#define FERRY_RULES_LOAD_H

#include "ferry/ferry.h"
#include "rules/rule.h"

enum { FY_LOAD_BINS = 16, FY_LOAD_BINS_OF_MEAN = 4 };

/* The bin of an expert with `rows` of `total` rows over `experts` experts: quarters of the mean. */
FY_RULE int32_t fy_load_bin(int64_t rows, int64_t total, int64_t experts) {
    int64_t bin = total == 0 ? 0 : FY_LOAD_BINS_OF_MEAN * rows * experts / total;
    return bin < FY_LOAD_BINS ? (int32_t)bin : FY_LOAD_BINS - 1;
}

/* The busiest of `count` against their mean. */
FY_RULE float fy_load_over(int64_t busiest, int64_t total, int64_t count) {
    return total == 0 ? 0.0f : (float)((double)(busiest * count) / (double)total);
}

/* One thread's way: `rows` [experts], `expert_rank` [experts], `rank_rows` [ranks] is scratch. */
FY_RULE void fy_load_of(const int32_t *rows, const int32_t *expert_rank, int64_t experts, int ranks, int64_t *rank_rows,
                        ferry_load *load) {
    ferry_load l = {0};
    int64_t most = 0;
    for (int r = 0; r < ranks; r++) rank_rows[r] = 0;
    for (int64_t e = 0; e < experts; e++) {
        l.rows += rows[e];
        rank_rows[expert_rank[e]] += rows[e];
        l.empty_experts += rows[e] == 0;
        if (rows[e] > most) {
            most = rows[e];
            l.busiest_expert = (int32_t)e;
        }
    }
    for (int r = 0; r < ranks; r++) {
        if (rank_rows[r] <= l.busiest_rows) continue;
        l.busiest_rows = rank_rows[r];
        l.busiest_rank = r;
    }
    for (int64_t e = 0; e < experts; e++) l.histogram[fy_load_bin(rows[e], l.rows, experts)]++;
    l.overload = fy_load_over(l.busiest_rows, l.rows, ranks);
    l.expert_overload = fy_load_over(most, l.rows, experts);
    *load = l;
}

#endif
