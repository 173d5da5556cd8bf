/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has really happened in a case, beside what the code's own flags say; and what must hold at the end.
 */
#ifndef FERRY_MODEL_PROGRESS_H
#define FERRY_MODEL_PROGRESS_H

#include <map>
#include <tuple>
#include <vector>

/* A product tile: kind, counter or segment, which weight (0 of others), row tile (0 of others), column tile. */
typedef std::tuple<int, int, int, int, int> tile_name;

/* A tile of the sums that a macrobatch's end leaves open, and whose: one warpgroup's half. */
struct open_sums {
    int expert;
    bool used;
};

struct case_progress {
    std::map<tile_name, int> begun; /* how often */
    /* Of each padded block, column tiles whose product is over: */
    std::vector<int> x_read;  /* make: they have read x */
    std::vector<int> h_read;  /* finish: they have read h */
    std::vector<int> graded;  /* GRAD: gradients of h */
    std::vector<int> dx_made; /* DX */
    std::vector<int> weights; /* of each segment: tiles of weight gradients, once for each warpgroup */
    std::vector<open_sums> open;
};

extern case_progress progress;

void progress_clear();
void progress_judge(); /* at the end: every ticket once, every counter full */

/* Of a weight tile's open sums, those of one warpgroup. */
inline open_sums &progress_open(int tile, int group) { return progress.open.at(2 * tile + group); }

#endif
