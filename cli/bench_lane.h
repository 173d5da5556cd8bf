/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's queue of timed work on its GPU. A whole repetition is enqueued behind a gate that the ranks open when all
 * of them have enqueued theirs, so no time of a host is between the marks. Before a start mark all GPUs meet: each
 * tells the others, by words in host memory, that it has come so far, and waits for them.
 */
#ifndef FERRY_CLI_BENCH_LANE_H
#define FERRY_CLI_BENCH_LANE_H

#include "cli/bench.h"

#include <cuda.h>
#include <cuda_runtime.h>

enum { BENCH_MARKS = 32 };

typedef struct bench_lane {
    cli_device *device;
    bench_gates *gates;
    int rank, ranks, marks;
    uint32_t opened, met;
    cudaEvent_t mark[BENCH_MARKS];
    int made; /* events */
    CUresult (*write)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
    CUresult (*await)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
} bench_lane;

/* Each returns NULL, or why it failed. */
const char *bench_lane_open(bench_lane *lane, cli_device *device, bench_gates *gates, int rank, int ranks);
void bench_lane_close(bench_lane *lane);
/* For a rank that failed: nobody waits for it any more, at the gate or where GPUs meet. The numbers of the measurement
 * mean nothing then. */
void bench_lane_give_up(bench_gates *gates, int rank);
/* A new repetition: marks count from 0, what is enqueued from here on waits for bench_lane_go. */
const char *bench_lane_begin(bench_lane *lane);
/* All GPUs meet here. */
const char *bench_lane_meet(bench_lane *lane);
const char *bench_lane_mark(bench_lane *lane);
/* Collective: opens the gate when all ranks have come, and waits for this rank's work. */
const char *bench_lane_go(bench_lane *lane, ferry_comm *comm);
/* Seconds between two marks of the repetition that has run. */
double bench_lane_between(const bench_lane *lane, int from, int to);

#endif
