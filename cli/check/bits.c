/* SPDX-License-Identifier: Apache-2.0 */
/* The same inputs give the same bits: two problems, each run in a plain way and in every other, and compared. */
#include "cli/check/gpu.h"
#include "cli/check/bits.h"

#include <string.h>

static const check_problem problems[] = {
    /* Many rows: experts that cross several macrobatches, clamped values, repeats within a token. */
    {.seed = 11,
     .tokens = 220,
     .hidden = 72,
     .intermediate = 80,
     .shared = 40,
     .experts = 12,
     .slots = 4,
     .limit = 1.25f,
     .route = check_route_skewed},
    /* Wide matrices: several tiles in both directions. */
    {.seed = 12,
     .tokens = 70,
     .hidden = 330,
     .intermediate = 290,
     .shared = 270,
     .experts = 5,
     .slots = 2,
     .route = check_route_holes},
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

typedef struct variation {
    const char *name;
    check_way way;
    int64_t least_macrobatches; /* that some rank must count in the first problem; 0: any */
} variation;

/* Units of work begin late, most a little and some 10 ms: whatever is not awaited comes too late. */
static int jitter(void *user, const ferry_event *event) {
    static _Atomic int64_t events;
    (void)user;
    if (!event->begin || event->wait) return 0;
    double u = (double)check_below(7, CHECK_CHOICES, ++events, 1000) / 1000;
    check_sleep(0.01 * u * u * u * u);
    return 0;
}

static void use_jitter(void *user, int rank, ferry_comm_config *config) {
    (void)rank;
    config->observer = (ferry_observer){jitter, user};
}

static const variation variations[] = {
    {"a second run", {.ring_part = 1}, 0},
    {"2 ranks", {.ranks = 2}, 0},
    {"3 ranks", {.ranks = 3}, 0},
    {"4 ranks", {.ranks = 4}, 0},
    {"8 ranks", {.ranks = 8}, 0},
    {"2 processes", {.ranks = 2, .processes = 1}, 0},
    {"3 processes", {.ranks = 3, .processes = 1}, 0},
    {"8 processes", {.ranks = 8, .processes = 1}, 0},
    {"1 process", {.ranks = 1, .processes = 1}, 0},
    {"ring of 1/2 of the rows", {.ring_part = 2}, 2},
    {"ring of 1/4 of the rows", {.ring_part = 4}, 4},
    {"ring of 64 rows", {.ring = 64}, 8},
    {"ring of 64 rows, 2 ranks", {.ranks = 2, .ring = 64}, 8},
    {"ring of 192 rows, minibatch 64", {.ring = 192, .minibatch = 64}, 4},
    {"ring by rule", {.ranks = 1}, 0},
    {"minibatch 64", {.ring_part = 1, .minibatch = 64}, 0},
    {"minibatch 128", {.ring_part = 1, .minibatch = 128}, 0},
    {"1 + 2 workers", {.comm_workers = 1, .compute_workers = 2}, 0},
    {"2 + 1 workers", {.comm_workers = 2, .compute_workers = 1}, 0},
    {"3 + 3 workers", {.comm_workers = 3, .compute_workers = 3, .minibatch = 64}, 0},
    {"4 + 4 workers", {.comm_workers = 4, .compute_workers = 4, .ring_part = 2}, 0},
    {"4 + 4 workers, 2 processes",
     {.ranks = 2, .processes = 1, .comm_workers = 4, .compute_workers = 4, .ring = 64},
     0},
    {"recomputed", {.save = CHECK_RECOMPUTE}, 0},
    {"half saved", {.save = CHECK_HALF}, 0},
    {"recomputed, ring of 64 rows", {.save = CHECK_RECOMPUTE, .ring = 64}, 8},
    {"half saved, ring of 64 rows, 3 ranks", {.ranks = 3, .save = CHECK_HALF, .ring = 64}, 0},
    {"half saved, ring of 1/4, 2 processes", {.ranks = 2, .processes = 1, .save = CHECK_HALF, .ring_part = 4}, 0},
    {"portable code", {.isa = FERRY_ISA_PORTABLE}, 0},
    {"AVX2", {.isa = FERRY_ISA_AVX2}, 0},
    {"AVX-512", {.isa = FERRY_ISA_AVX512}, 0},
    {"portable code, recomputed, ring of 64 rows", {.isa = FERRY_ISA_PORTABLE, .save = CHECK_RECOMPUTE, .ring = 64}, 8},
    {"data part, then weight part", {.ranks = 2, .parts_first = FERRY_BACKWARD_DATA}, 0},
    {"weight part, then data part", {.ranks = 2, .parts_first = FERRY_BACKWARD_WEIGHT}, 0},
    {"parts apart, recomputed, ring of 64 rows",
     {.ranks = 2, .parts_first = FERRY_BACKWARD_DATA, .save = CHECK_RECOMPUTE, .ring = 64},
     8},
    {"x and dout in symmetric memory", {.ranks = 2, .symmetric = 1}, 0},
    {"x and dout in symmetric memory, processes, weight part first",
     {.ranks = 3, .processes = 1, .symmetric = 1, .padded = 1, .parts_first = FERRY_BACKWARD_WEIGHT},
     0},
    {"fused weights, 64-bit ids, wide rows", {.layout = CHECK_FUSED, .ids_dtype = FERRY_I64, .padded = 1}, 0},
    {"pointers per expert, experts scattered", {.ranks = 3, .layout = CHECK_TABLE, .scattered = 1}, 0},
    {"beta 1, ring of 64 rows", {.ranks = 2, .beta = 1, .ring = 64}, 8},
    {"BF16 gradients, 4 ranks, ring of 64 rows", {.ranks = 4, .grad_dtype = FERRY_BF16, .ring = 64}, 0},
    {"BF16 gradients, beta 1, recomputed",
     {.ranks = 2, .grad_dtype = FERRY_BF16, .beta = 1, .save = CHECK_RECOMPUTE, .ring_part = 2},
     0},
    {"late units, 3 + 3 workers",
     {.comm_workers = 3, .compute_workers = 3, .ring = 256, .minibatch = 64, .tune = use_jitter},
     0},
    {"late units, 3 + 3 workers, recomputed, 2 ranks",
     {.ranks = 2,
      .comm_workers = 3,
      .compute_workers = 3,
      .ring = 256,
      .minibatch = 64,
      .save = CHECK_RECOMPUTE,
      .tune = use_jitter},
     0},
    {"late units, 2 + 4 workers, half saved, weight part first, 3 processes",
     {.ranks = 3,
      .processes = 1,
      .comm_workers = 2,
      .compute_workers = 4,
      .ring = 128,
      .minibatch = 64,
      .save = CHECK_HALF,
      .parts_first = FERRY_BACKWARD_WEIGHT,
      .tune = use_jitter},
     0},
    {"late units, 2 + 2 workers, data part first, symmetric",
     {.ranks = 2,
      .comm_workers = 2,
      .compute_workers = 2,
      .ring = 64,
      .symmetric = 1,
      .save = CHECK_RECOMPUTE,
      .parts_first = FERRY_BACKWARD_DATA,
      .tune = use_jitter},
     0},
    {"everything at once",
     {.ranks = 5,
      .processes = 1,
      .grad_dtype = FERRY_BF16,
      .beta = 1,
      .save = CHECK_HALF,
      .ring = 64,
      .comm_workers = 2,
      .compute_workers = 2,
      .isa = FERRY_ISA_PORTABLE,
      .layout = CHECK_TABLE,
      .scattered = 1,
      .symmetric = 1,
      .parts_first = FERRY_BACKWARD_DATA},
     0},
};

/* The plain way gives what it shares with the other the same form: gradients of the same dtype and beta. */
static check_way plain_way(const check_way *other) {
    return (check_way){
        .backend = other->backend,
        .ring_part = 1,
        .comm_workers = 1,
        .compute_workers = 1,
        .grad_dtype = other->grad_dtype,
        .beta = other->beta,
    };
}

typedef struct comparison {
    int problem;
    int variation;
} comparison;

static void check_macrobatches(const check_case *c, const check_result *result, const check_way *way, int64_t least) {
    int64_t most = 0;
    for (int r = 0; r < check_way_ranks(way); r++) {
        if (result->rank[r].forward.macrobatches > most) most = result->rank[r].forward.macrobatches;
    }
    if (most < least) {
        check_fail(c, "%lld macrobatches, expected at least %lld", (long long)most, (long long)least);
    }
}

static void compare(const check_case *c) {
    const comparison *pair = c->argument;
    const variation *v = &variations[pair->variation];
    check_way way = v->way;
    way.backend = (ferry_backend)c->options->backend;
    if (!check_way_possible(c, &way)) return;
    check_way plain = plain_way(&way);
    check_problem problem = problems[pair->problem];
    check_batch batch;
    check_fit_problem(c->options, &problem);
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *expected = check_run(c, &batch, &plain);
    check_result *got = expected ? check_run(c, &batch, &way) : NULL;
    if (got) {
        check_same_bits(c, expected, got, v->name);
        if (pair->problem == 0) check_macrobatches(c, got, &way, v->least_macrobatches);
    }
    check_result_free(got);
    check_result_free(expected);
    check_batch_free(&batch);
}

/* The plain run is what all others are compared with, so it is the one that must be right. */
static void plain_is_right(const check_case *c) {
    check_way plain = plain_way(&(check_way){.backend = (ferry_backend)c->options->backend});
    check_problem problem = *(const check_problem *)c->argument;
    check_batch batch;
    check_fit_problem(c->options, &problem);
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_run(c, &batch, &plain);
    if (result) check_against_reference(c, &batch, &plain, result);
    check_result_free(result);
    check_batch_free(&batch);
}

/* A token's out, dx and dweights do not depend on the other tokens: the first ones of a batch, run alone. */
static void prefix(const check_case *c) {
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 2};
    check_problem many = *(const check_problem *)c->argument;
    check_fit_problem(c->options, &many);
    check_problem few = many;
    few.tokens = few.tokens / 3;
    check_batch all, some;
    CHECK_OR_RETURN(, c, check_batch_make(&many, &all) && check_batch_make(&few, &some), "no memory");
    check_result *expected = check_run(c, &all, &way);
    check_result *got = expected ? check_run(c, &some, &way) : NULL;
    for (int id = CHECK_OUT; id <= CHECK_DWEIGHTS && got; id++) {
        const check_tensor *part = &got->tensor[id];
        if (memcmp(part->data, expected->tensor[id].data, (size_t)part->count * check_dtype_bytes(part->dtype))) {
            check_fail(c, "%s of the first %lld tokens depends on the others", check_tensor_name((check_tensor_id)id),
                       (long long)few.tokens);
        }
    }
    check_result_free(got);
    check_result_free(expected);
    check_batch_free(&some);
    check_batch_free(&all);
}

void check_suite_bits(check_list *list, const check_options *options) {
    (void)options;
    check_add(list, "bits", 60, check_documented_order, NULL, "sums are made in the documented order");
    for (int p = 0; p < PROBLEMS; p++) {
        const char *kind = p ? "wide matrices" : "many rows";
        check_add(list, "bits", 60, plain_is_right, &problems[p], "%s: the plain run is right", kind);
        check_add(list, "bits", 60, prefix, &problems[p], "%s: a token does not depend on the others", kind);
        for (size_t v = 0; v < sizeof variations / sizeof *variations; v++) {
            comparison pair = {p, (int)v};
            check_add(list, "bits", 60, compare, check_keep(list, &pair, sizeof pair), "%s: %s", kind,
                      variations[v].name);
        }
    }
}
