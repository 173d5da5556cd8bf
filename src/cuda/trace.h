/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a traced call leaves on the device: times of the schedule's launches, and spans of the workers inside the
 * compute launch's blocks (trace.cuh writes them, trace.c reads them for the communicator's observer).
 */
#ifndef FERRY_CUDA_TRACE_H
#define FERRY_CUDA_TRACE_H

#include <stdint.h>

/* Launches of the schedule, and parts of them, with their words; WAITS: 1 while peers are awaited. */
#define FY_GPU_LAUNCH_MAP(X)                                                                                           \
    X(COUNT, 0, "count of the experts")                                                                                \
    X(RANK, 0, "positions of the slots, staging")                                                                      \
    X(WAIT, 1, "publication of the call by all ranks")                                                                 \
    X(LAY, 0, "blocks and tiles of experts")                                                                           \
    X(PLACE, 0, "tables of rows")                                                                                      \
    X(KEEP, 0, "copies for the backward")                                                                              \
    X(STAGE, 0, "staging of dout")                                                                                     \
    X(LIST, 0, "list of tickets of the backward")                                                                      \
    X(ENTER, 1, "publication of the call by all ranks")

enum fy_gpu_launch {
#define FY_GPU_LAUNCH_ENUM(NAME, waits, what) FY_LAUNCH_##NAME,
    FY_GPU_LAUNCH_MAP(FY_GPU_LAUNCH_ENUM)
#undef FY_GPU_LAUNCH_ENUM
        FY_LAUNCHES
};

/* What a worker does: numbers below FY_SITES are waits at those places (enum fy_gpu_site), those from there on these.
 */
#define FY_GPU_MARK_MAP(X)                                                                                             \
    X(OPERANDS, COMPUTE, 1, "operands in shared memory")                                                               \
    X(CHOICE, COMPUTE, 1, "a ticket whose inputs are there")                                                           \
    X(TOKENS, SUM, 1, "tokens whose rows have all come")                                                               \
    X(FEED, COMPUTE, 0, "operands of a tile")                                                                          \
    X(PULL, PULL, 0, "rows of a tile")                                                                                 \
    X(GATE_UP, COMPUTE, 0, "gate and up")                                                                              \
    X(STORE_H, COMPUTE, 0, "SwiGLU and the staging of h")                                                              \
    X(DOWN, COMPUTE, 0, "down")                                                                                        \
    X(PUSH, PUSH, 0, "result rows of a tile")                                                                          \
    X(SIGNAL, PUSH, 0, "store of h, signals of tiles")                                                                 \
    X(REMAKE, COMPUTE, 0, "gate and up again")                                                                         \
    X(STORE_G_U, COMPUTE, 0, "store of g and u")                                                                       \
    X(GRAD, COMPUTE, 0, "gradient of h")                                                                               \
    X(STORE_GRAD, COMPUTE, 0, "gradients of SwiGLU and their store")                                                   \
    X(DX, COMPUTE, 0, "gradient of x")                                                                                 \
    X(WEIGHT, COMPUTE, 0, "gradient of a weight")                                                                      \
    X(STORE_WEIGHT, COMPUTE, 0, "store of a weight's gradient")                                                        \
    X(SUM, SUM, 0, "sums of tokens")

/* A time in which one worker did one thing. */
typedef struct fy_gpu_span {
    uint64_t begin_ns;
    uint32_t ns;
    uint32_t what; /* the mark in the low FY_MARK_BITS; above: the block of rows + 1, or 0: of none */
} fy_gpu_span;

enum { FY_MARK_BITS = 6, FY_MARK_MASK = (1 << FY_MARK_BITS) - 1 };

/* Device memory; span NULL: the call is not traced. */
typedef struct fy_gpu_trace {
    fy_gpu_span *span; /* [blocks][FERRY_SM_WORKERS][room] */
    uint32_t *count;   /* [blocks][FERRY_SM_WORKERS] spans, also those that found no room */
    uint64_t *launch;  /* [FY_LAUNCHES][2] first begin, all bits set before; last end, zero before */
    int32_t blocks, room;
} fy_gpu_trace;

#endif
