/* SPDX-License-Identifier: Apache-2.0 */
/* The outputs of a run, gathered over ranks in memory that ranks as processes share, and how they are compared. */
#ifndef FERRY_CLI_CHECK_RESULT_H
#define FERRY_CLI_CHECK_RESULT_H

#include "cli/check/problem.h"
#include "cli/check/suite.h"

#include "ref/ref.h"

/* Name, and whether it is a gradient of weights. */
#define CHECK_TENSORS(X)                                                                                               \
    X(OUT, "out")                                                                                                      \
    X(DX, "dx")                                                                                                        \
    X(DWEIGHTS, "dweights")                                                                                            \
    X(DGATE, "dgate")                                                                                                  \
    X(DUP, "dup")                                                                                                      \
    X(DDOWN, "ddown")                                                                                                  \
    X(DSHARED_GATE, "dshared_gate")                                                                                    \
    X(DSHARED_UP, "dshared_up")                                                                                        \
    X(DSHARED_DOWN, "dshared_down")

typedef enum check_tensor_id {
#define CHECK_TENSOR_ENUM(ID, name) CHECK_##ID,
    CHECK_TENSORS(CHECK_TENSOR_ENUM)
#undef CHECK_TENSOR_ENUM
        CHECK_TENSOR_COUNT
} check_tensor_id;

/* Contiguous. Shared-expert gradients are [R, S, H] and so on: one per rank. */
typedef struct check_tensor {
    ferry_dtype dtype;
    int64_t dims[3];
    int64_t count; /* 0: not part of the problem */
    unsigned char *data;
} check_tensor;

/* What a rank saw. */
typedef struct check_rank_outcome {
    ferry_plan plan;
    ferry_stats forward, backward;
} check_rank_outcome;

typedef struct check_result {
    check_tensor tensor[CHECK_TENSOR_COUNT];
    check_rank_outcome rank[CHECK_MAX_RANKS];
} check_result;

const char *check_tensor_name(check_tensor_id id);
size_t check_dtype_bytes(ferry_dtype dtype);
double check_value(const check_tensor *tensor, int64_t index);

/* Every value NaN. `dtype` 0: those that the layer writes; otherwise all tensors have it. NULL after a check_fail. */
check_result *check_result_make(const check_case *c, const check_batch *batch, const check_way *way, ferry_dtype dtype);
void check_result_free(check_result *result);

/* What a gradient buffer holds before a run with beta = 1: unit scale, representable in BF16; or what way->old has. */
float check_old_gradient(const check_problem *problem, const check_way *way, check_tensor_id id, int64_t index);

/* The oracle's result for the way's split, in F64, beta and the gradients' rounding (FY_REF_POINTS) included.
 * NULL after a check_fail. */
check_result *check_reference(const check_case *c, const check_batch *batch, const check_way *way, fy_ref_mode mode);

/* Relative L2 error of a tensor; infinite when a value is not finite, except where `special` allows that and the
 * reference is not finite either. *worst: index of the largest difference. */
double check_error(const check_tensor *got, const check_tensor *want, int special, int64_t *worst);

/* Fails unless every tensor is near the reference: `out` within `out_bound`, the others within `gradient_bound`. */
void check_near(const check_case *c, const check_result *got, const check_result *want, int special, double out_bound,
                double gradient_bound, const char *against);
/* Both references, with the bounds of the project. */
void check_against_reference(const check_case *c, const check_batch *batch, const check_way *way,
                             const check_result *got);
/* Fails unless all tensors hold the same bytes; names the first coordinate that differs. Shared-expert gradients are
 * compared when both have the same number of ranks. */
void check_same_bits(const check_case *c, const check_result *a, const check_result *b, const char *what);

#endif
