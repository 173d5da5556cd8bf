/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A problem is the mathematics (shapes, routing, values), a way is how it is run (ranks, knobs, layouts). Values are
 * of unit scale and keyed by (seed, tensor, global index), so a token is the same however the batch is split.
 */
#ifndef FERRY_CLI_CHECK_PROBLEM_H
#define FERRY_CLI_CHECK_PROBLEM_H

#include "ferry/ferry.h"

enum { CHECK_MAX_RANKS = 8 };

typedef struct check_problem check_problem;
typedef struct check_batch check_batch;

/* Expert id of a slot: any value; outside -1..E-1 it is a bad id. `token` counts from the stream's beginning. */
typedef int64_t check_route(const check_problem *problem, int64_t token, int64_t slot);

struct check_problem {
    uint64_t seed;
    int64_t first; /* index of the first token in the stream of tokens that the seed gives */
    int64_t tokens, hidden, intermediate, shared, experts, slots;
    float limit;
    check_route *route;               /* NULL: check_route_random */
    int64_t route_number;             /* what the route makes of it is its own affair */
    void (*edit)(check_batch *batch); /* changes values after they are made; NULL: none */
    int special;                      /* 1: NaN and Inf are expected where the reference has them */
    int forward_only;
};

/* The global batch. Slots without an expert have NaN as weight, which nobody may read. */
struct check_batch {
    check_problem problem;
    uint16_t *x, *dout;                              /* [T, H] */
    int64_t *ids;                                    /* [T, K] */
    float *weights;                                  /* [T, K] */
    uint16_t *gate, *up, *down;                      /* [E, I, H], [E, I, H], [E, H, I] */
    uint16_t *shared_gate, *shared_up, *shared_down; /* [S, H], [S, H], [H, S] */
    int64_t bad_ids;                                 /* ids outside -1..E-1 */
};

typedef enum check_layout {
    CHECK_SEPARATE, /* a tensor each for gate and up */
    CHECK_FUSED,    /* gate and up are views of one [E, 2I, H] */
    CHECK_TABLE     /* a pointer per expert, experts out of order, rows wider than their columns */
} check_layout;

/* Rows of the context: all of the busiest rank, half of them, none, or what the layer's rule says. */
typedef enum check_save { CHECK_SAVED, CHECK_HALF, CHECK_RECOMPUTE, CHECK_BY_RULE } check_save;

/* All zero is: 1 rank, threads, everything by rule, everything saved. */
typedef struct check_way {
    ferry_backend backend;
    int ranks;            /* 0: 1 */
    int processes;        /* 0: threads */
    const int64_t *split; /* [ranks] tokens of each rank; NULL: as even as possible */
    int64_t max_tokens;   /* 0: the most that a rank has */
    int comm_workers, compute_workers;
    ferry_isa isa;
    int64_t ring, minibatch; /* rows */
    int64_t ring_part;       /* > 0: the ring holds 1 / ring_part of the busiest rank's rows */
    check_save save;
    check_layout layout;
    ferry_dtype ids_dtype, grad_dtype; /* 0: I32, F32 */
    float beta;
    const struct check_result *old; /* what gradients hold before with beta 1; NULL: check_old_gradient's values */
    int parts_first;                /* a FERRY_BACKWARD_* part to run by itself before the other; 0: together */
    int symmetric;                  /* x and dout lie in symmetric memory */
    int padded;                     /* rows of x, out, dout, dx are wider than H */
    int scattered;                  /* an expert map that is not contiguous */
    double enter_timeout_s, progress_timeout_s;                    /* 0: 30 */
    void (*tune)(void *user, int rank, ferry_comm_config *config); /* last word on a rank's configuration */
    void *tune_user;
} check_way;

/* The keys of values. */
enum {
    CHECK_X,
    CHECK_DOUT,
    CHECK_IDS,
    CHECK_WEIGHTS,
    CHECK_GATE,
    CHECK_UP,
    CHECK_DOWN,
    CHECK_SHARED_GATE,
    CHECK_SHARED_UP,
    CHECK_SHARED_DOWN,
    CHECK_CHOICES,
    CHECK_OLD /* + a result's tensor */
};

uint64_t check_bits(uint64_t seed, int key, int64_t index);
/* Uniform in [0, n). */
int64_t check_below(uint64_t seed, int key, int64_t index, int64_t n);
/* Mean 0, variance 1, representable in BF16. */
float check_unit(uint64_t seed, int key, int64_t index);
uint16_t check_bf16(float value);
float check_widen(uint16_t value);

check_route check_route_random;   /* every slot by itself: repeats within a token happen */
check_route check_route_distinct; /* no repeats while K <= E */
check_route check_route_skewed;   /* low experts get most */
check_route check_route_holes;    /* random, a quarter of the slots has no expert */
check_route check_route_one;      /* every slot to expert route_number */
check_route check_route_same;     /* slot k of every token to expert k mod E */
check_route check_route_none;     /* no slot has an expert */

/* 0 and a message on stderr when memory ran out. */
int check_batch_make(const check_problem *problem, check_batch *batch);
void check_batch_free(check_batch *batch);

/* Tokens of a rank, and how many come before them. */
int64_t check_way_tokens(const check_way *way, int64_t total, int rank);
int64_t check_way_first(const check_way *way, int64_t total, int rank);
int64_t check_way_max_tokens(const check_way *way, int64_t total);
int check_way_ranks(const check_way *way);
/* The rank of an expert, by the rule or by the scattered map. */
int check_way_expert_rank(const check_way *way, int64_t experts, int64_t expert);
/* Rows of the busiest rank when every expert's rows are padded to 64. */
int64_t check_way_rows(const check_way *way, const check_batch *batch);
/* Rows that a ring_part gives: a multiple of 64. */
int64_t check_way_ring(const check_way *way, const check_batch *batch);

/* One line that says what is run. */
void check_describe(const check_problem *problem, const check_way *way, char *to, size_t room);

#endif
