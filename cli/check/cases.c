/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs that break systems like this one, numbered. A row here is a case that is one run compared with the reference;
 * cases about several calls, faults or memory carry their numbers in the other suites.
 */
#include "cli/check/session.h"

#include <math.h>

/* ---- Routings ---- */

/* Slots go to experts below route_number, or to those from -route_number on. */
static int64_t route_range(const check_problem *p, int64_t token, int64_t slot) {
    int64_t low = p->route_number < 0 ? -p->route_number : 0;
    int64_t high = p->route_number < 0 ? p->experts : p->route_number;
    return low + check_below(p->seed, CHECK_IDS, token * p->slots + slot, high - low);
}

/* Every third token has no expert at all. */
static int64_t route_empty_tokens(const check_problem *p, int64_t token, int64_t slot) {
    return token % 3 == 1 ? -1 : check_route_random(p, token, slot);
}

/* Only the first route_number tokens have experts. */
static int64_t route_first_tokens(const check_problem *p, int64_t token, int64_t slot) {
    return token < p->route_number ? check_route_random(p, token, slot) : -1;
}

/* All but ten tokens share one routing row. */
static int64_t route_all_but_ten(const check_problem *p, int64_t token, int64_t slot) {
    return check_route_distinct(p, token % 7 == 3 && token < 70 ? token + 1 : 0, slot);
}

/* Ids at and above E, below -1, and such that cutting off high bits would make them look right. */
static int64_t route_bad(const check_problem *p, int64_t token, int64_t slot) {
    int64_t n = token * p->slots + slot;
    if (n % 11 == 5) return p->experts;
    if (n % 13 == 6) return -2;
    if (n % 17 == 8) return INT32_MAX;
    if (n % 19 == 9) return p->route_number ? ((int64_t)1 << 40) + 1 : INT32_MIN;
    return check_route_random(p, token, slot);
}

static const int64_t group_sizes[] = {1, 31, 32, 33, 44, 127, 128, 129};
enum { GROUPS = sizeof group_sizes / sizeof *group_sizes, GROUP_ROWS = 525 };

/* Expert e gets group_sizes[e] slots, scattered over the tokens. */
static int64_t route_groups(const check_problem *p, int64_t token, int64_t slot) {
    int64_t n = (token * p->slots + slot) * 2 % GROUP_ROWS, e = 0; /* 2 and 525 have no common divisor */
    while (n >= group_sizes[e]) n -= group_sizes[e++];
    return e;
}

/* ---- Values ---- */

static void edit_zero_weights(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.slots; i++) b->weights[i] = 0;
}

static void edit_negative_weights(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.slots; i++) b->weights[i] = -fabsf(b->weights[i]);
}

static void edit_equal_weights(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.slots; i++) b->weights[i] = 1 / (float)b->problem.slots;
}

static void edit_nan_weight(check_batch *b) { b->weights[5 * b->problem.slots] = NAN; }

static void edit_nan_token(check_batch *b) {
    for (int64_t j = 0; j < b->problem.hidden; j++) b->x[7 * b->problem.hidden + j] = check_bf16(NAN);
}

static void edit_inf_token(check_batch *b) { b->x[7 * b->problem.hidden + 3] = check_bf16(INFINITY); }

static void edit_inf_dout(check_batch *b) { b->dout[7 * b->problem.hidden + 3] = check_bf16(-INFINITY); }

static void edit_denormal_dout(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.hidden; i++) {
        b->dout[i] = check_bf16(check_widen(b->dout[i]) * 0x1p-128f);
    }
}

static void edit_zeros(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.hidden; i++) {
        if (i / b->problem.hidden % 2) b->x[i] = i % 2 ? 0x8000 : 0;
    }
}

/* Large enough that a product that goes through a narrower exponent than 8 bits overflows. */
static void edit_large(check_batch *b) {
    for (int64_t i = 0; i < b->problem.tokens * b->problem.hidden; i++) {
        b->x[i] = check_bf16(check_widen(b->x[i]) * 0x1p40f);
        b->dout[i] = check_bf16(check_widen(b->dout[i]) * 0x1p-60f);
    }
}

/* ---- The table ---- */

typedef struct entry {
    int number;
    const char *title;
    check_recipe recipe;
} entry;

#define SPLIT(...)                                                                                                     \
    .split = (const int64_t[]) { __VA_ARGS__ }
/* Tokens, H, I, E, K */
#define SHAPE(n, h, i, e, k) .tokens = n, .hidden = h, .intermediate = i, .experts = e, .slots = k

static const entry entries[] = {
    {1, "some ranks receive no rows", {{SHAPE(60, 64, 64, 8, 2), .route = check_route_one}, {.ranks = 3}}},
    {1,
     "some ranks receive no rows, as processes",
     {{SHAPE(60, 64, 64, 8, 2), .shared = 40, .route = check_route_one, .route_number = 7},
      {.ranks = 3, .processes = 1}}},
    {2, "one rank has no tokens, the others 1,024", {{SHAPE(2048, 64, 64, 6, 2)}, {.ranks = 3, SPLIT(1024, 0, 1024)}}},
    {3, "no tokens on any rank", {{SHAPE(0, 24, 16, 4, 2), .shared = 8}, {.ranks = 3, .max_tokens = 16}}},
    {3, "no tokens, max_tokens 0", {{SHAPE(0, 24, 16, 4, 2)}, {.ranks = 2}}},
    {4,
     "a rank without rows and tokens takes part, its gradients are zeros",
     {{SHAPE(40, 64, 64, 9, 2), .shared = 24, .route = check_route_one}, {.ranks = 3, SPLIT(20, 20, 0)}}},
    {5,
     "the last local expert is empty",
     {{SHAPE(50, 64, 64, 8, 2), .route = route_range, .route_number = 7}, {.ranks = 2}}},
    {5,
     "the first local expert is empty",
     {{SHAPE(50, 64, 64, 8, 2), .route = route_range, .route_number = -1}, {.ranks = 2}}},
    {5,
     "all but one of 384 experts are empty",
     {{SHAPE(70, 24, 16, 384, 1), .route = check_route_one, .route_number = 200}, {.ranks = 4}}},
    {6, "N = 1", {{SHAPE(1, 40, 24, 4, 2), .shared = 16}, {.ranks = 1}}},
    {6, "N = 2", {{SHAPE(2, 40, 24, 4, 2), .shared = 16}, {.ranks = 2}}},
    {6, "N = 3", {{SHAPE(3, 40, 24, 4, 2), .shared = 16}, {.ranks = 2}}},
    {8, "some slots without expert", {{SHAPE(64, 64, 64, 6, 3), .route = check_route_holes}, {.ranks = 2}}},
    {8, "all slots of a token without expert", {{SHAPE(64, 64, 64, 6, 3), .route = route_empty_tokens}, {.ranks = 2}}},
    {8,
     "all slots of a rank without expert",
     {{SHAPE(64, 64, 64, 6, 3), .shared = 24, .route = route_first_tokens, .route_number = 32}, {.ranks = 2}}},
    {8,
     "no slot has an expert, with a shared expert",
     {{SHAPE(64, 64, 64, 6, 2), .shared = 64, .route = check_route_none}, {.ranks = 2}}},
    {8,
     "no slot has an expert, without shared expert",
     {{SHAPE(64, 64, 64, 6, 2), .route = check_route_none}, {.ranks = 2}}},
    {9, "bad ids are reported, other tokens are right", {{SHAPE(64, 64, 64, 6, 3), .route = route_bad}, {.ranks = 3}}},
    {9,
     "bad 64-bit ids, as processes",
     {{SHAPE(64, 64, 64, 6, 3), .route = route_bad, .route_number = 1},
      {.ranks = 2, .processes = 1, .ids_dtype = FERRY_I64}}},
    {10,
     "an expert in every slot of every token gets more than N rows",
     {{SHAPE(40, 64, 64, 4, 4), .route = check_route_one, .route_number = 2}, {.ranks = 2}}},
    {11,
     "every token picks the same experts, all on one rank",
     {{SHAPE(48, 64, 64, 12, 4), .route = check_route_same}, {.ranks = 3}}},
    {12, "all router weights are 0", {{SHAPE(40, 64, 64, 4, 2), .edit = edit_zero_weights}, {.ranks = 2}}},
    {12, "all router weights are negative", {{SHAPE(40, 64, 64, 4, 2), .edit = edit_negative_weights}, {.ranks = 2}}},
    {12, "one router weight is NaN", {{SHAPE(40, 64, 64, 8, 2), .edit = edit_nan_weight, .special = 1}, {.ranks = 2}}},
    {13, "K = 1", {{SHAPE(70, 64, 64, 4, 1)}, {.ranks = 2}}},
    {13, "K = E", {{SHAPE(30, 64, 64, 6, 6), .route = check_route_distinct}, {.ranks = 2}}},
    {13, "K = 40", {{SHAPE(10, 64, 64, 8, 40)}, {.ranks = 2}}},
    {13, "K = 40 of 64 experts", {{SHAPE(10, 64, 64, 64, 40), .route = check_route_distinct}, {.ranks = 2}}},
    {14, "512 experts", {{SHAPE(60, 24, 16, 512, 4)}, {.ranks = 4}}},
    {14, "128 experts over 6 ranks", {{SHAPE(60, 32, 16, 128, 4)}, {.ranks = 6}}},
    {14, "3 experts over 5 ranks", {{SHAPE(60, 64, 64, 3, 2), .shared = 16}, {.ranks = 5}}},
    {14, "1 expert over 2 ranks", {{SHAPE(70, 64, 64, 1, 1)}, {.ranks = 2}}},
    {14, "experts scattered over ranks by a map", {{SHAPE(60, 64, 64, 10, 2)}, {.ranks = 3, .scattered = 1}}},
    {15,
     "all but ten tokens share one routing row",
     {{SHAPE(200, 64, 64, 16, 4), .route = route_all_but_ten}, {.ranks = 4}}},
    {16,
     "only rank 0 has live slots",
     {{SHAPE(90, 64, 64, 6, 2), .route = route_first_tokens, .route_number = 30}, {.ranks = 3}}},
    {19,
     "a ring of one minibatch while one rank receives everything",
     {{SHAPE(300, 64, 64, 4, 2), .shared = 16, .route = check_route_one, .route_number = 1},
      {.ranks = 2, .ring = 64, .minibatch = 64}}},
    {19,
     "the same over all experts of one rank, as processes",
     {{SHAPE(300, 64, 64, 8, 4), .route = check_route_same},
      {.ranks = 2, .processes = 1, .ring = 64, .minibatch = 64, .save = CHECK_RECOMPUTE}}},
    {19,
     "experts of several column tiles, cut by the ends of many macrobatches",
     {{SHAPE(220, 1024, 512, 3, 2)}, {.ranks = 1, .ring = 128, .minibatch = 64, .save = CHECK_RECOMPUTE}}},
    {20, "N odd and different on every rank", {{SHAPE(93, 64, 64, 7, 3)}, {.ranks = 4, SPLIT(1, 57, 3, 32)}}},
    {21, "H = 1", {{SHAPE(9, 1, 5, 3, 2), .shared = 3}, {.ranks = 2}}},
    {21, "H = 33", {{SHAPE(40, 33, 70, 3, 2)}, {.ranks = 2}}},
    {21, "H = 131", {{SHAPE(40, 131, 65, 3, 2), .shared = 67}, {.ranks = 2}}},
    {21, "H = 2880", {{SHAPE(36, 2880, 64, 4, 2)}, {.ranks = 2}}},
    {21, "H = 3072", {{SHAPE(36, 3072, 64, 4, 2)}, {.ranks = 2}}},
    {21, "H = 3584", {{SHAPE(36, 3584, 64, 4, 2)}, {.ranks = 2}}},
    {21, "H = 8192", {{SHAPE(33, 8192, 64, 2, 2)}, {.ranks = 2}}},
    {22, "I = 1", {{SHAPE(40, 64, 1, 3, 2)}, {.ranks = 2}}},
    {22, "I = 176", {{SHAPE(40, 96, 176, 4, 2)}, {.ranks = 2}}},
    {22, "I = 224", {{SHAPE(40, 96, 224, 4, 2)}, {.ranks = 2}}},
    {22, "I = 448", {{SHAPE(40, 96, 448, 4, 2)}, {.ranks = 2}}},
    {22, "I = 704", {{SHAPE(40, 96, 704, 4, 2)}, {.ranks = 2}}},
    {22, "I = 1408", {{SHAPE(40, 96, 1408, 4, 2)}, {.ranks = 2}}},
    {23, "3 ranks", {{SHAPE(65, 64, 64, 9, 2)}, {.ranks = 3}}},
    {23, "5 ranks", {{SHAPE(65, 64, 64, 9, 2)}, {.ranks = 5, .processes = 1}}},
    {23, "6 ranks", {{SHAPE(65, 64, 64, 9, 2)}, {.ranks = 6}}},
    {23, "7 ranks", {{SHAPE(65, 64, 64, 9, 2)}, {.ranks = 7}}},
    {24, "gate and up as two tensors", {{SHAPE(40, 64, 72, 5, 2)}, {.ranks = 2, .beta = 1}}},
    {24,
     "gate and up as views of one tensor",
     {{SHAPE(40, 64, 72, 5, 2)}, {.ranks = 2, .layout = CHECK_FUSED, .beta = 1}}},
    {24,
     "a pointer per expert, wider rows",
     {{SHAPE(40, 64, 72, 5, 2)}, {.ranks = 2, .layout = CHECK_TABLE, .grad_dtype = FERRY_BF16, .beta = 1}}},
    {25,
     "groups of 1, 31, 32, 33, 44, 127, 128 and 129 rows, K = 1",
     {{SHAPE(GROUP_ROWS, 64, 64, GROUPS, 1), .route = route_groups}, {.ranks = 2}}},
    {25,
     "the same groups, K = 5, small ring",
     {{SHAPE(GROUP_ROWS / 5, 64, 64, GROUPS, 5), .route = route_groups}, {.ranks = 3, .ring = 128, .minibatch = 64}}},
    {27, "rows of tokens wider than H", {{SHAPE(50, 64, 64, 5, 2)}, {.ranks = 2, .padded = 1}}},
    {28, "unit scale, relative bounds", {{SHAPE(128, 96, 80, 8, 4), .shared = 72, .limit = 1.25f}, {.ranks = 2}}},
    {29, "a token of NaN", {{SHAPE(60, 64, 64, 16, 2), .edit = edit_nan_token, .special = 1}, {.ranks = 2}}},
    {30,
     "NaN beside every tensor and behind every expert's rows",
     {{SHAPE(41, 65, 67, 5, 2)}, {.ranks = 2, .layout = CHECK_TABLE, .padded = 1, .ring = 64}}},
    {31,
     "a token with an infinite value",
     {{SHAPE(60, 64, 64, 16, 2), .edit = edit_inf_token, .special = 1}, {.ranks = 2}}},
    {31, "an infinite gradient", {{SHAPE(60, 64, 64, 16, 2), .edit = edit_inf_dout, .special = 1}, {.ranks = 2}}},
    /* Too narrow for the exact reference: denormals have few bits, so that only the rounded one says something. */
    {31, "denormal gradients", {{SHAPE(60, 64, 56, 8, 2), .edit = edit_denormal_dout}, {.ranks = 2}}},
    {31, "+0 and -0", {{SHAPE(60, 64, 64, 8, 2), .shared = 16, .edit = edit_zeros}, {.ranks = 2}}},
    {31, "large values", {{SHAPE(60, 64, 60, 8, 2), .edit = edit_large}, {.ranks = 2}}},
    {33, "equal router weights: ids are inputs", {{SHAPE(60, 64, 64, 8, 4), .edit = edit_equal_weights}, {.ranks = 2}}},
};

/* ---- An empty expert's gradients ---- */

/* Exactly 0, or exactly what was there: not within a bound. */
static void empty_expert(const check_case *c) {
    const check_problem problem = {SHAPE(40, 24, 16, 8, 2), .route = route_range, .route_number = 3};
    if (c->options->no_backward[0]) {
        check_skip(c, "%s", c->options->no_backward);
        return;
    }
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 2, .beta = *(const float *)c->argument};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_run(c, &batch, &way);
    for (int id = CHECK_DGATE; id <= CHECK_DDOWN && result; id++) {
        const check_tensor *tensor = &result->tensor[id];
        int64_t matrix = tensor->dims[1] * tensor->dims[2];
        for (int64_t i = problem.route_number * matrix; i < tensor->count; i++) {
            double expected = way.beta > 0 ? (double)check_old_gradient(&problem, &way, (check_tensor_id)id, i) : 0;
            if (check_value(tensor, i) == expected) continue;
            check_fail(c, "%s of expert %lld is %g, expected exactly %g", check_tensor_name((check_tensor_id)id),
                       (long long)(i / matrix), check_value(tensor, i), expected);
            break;
        }
    }
    check_result_free(result);
    check_batch_free(&batch);
}

/* ---- Cases that this command does not have a run for ---- */

static void elsewhere(const check_case *c) { check_skip(c, "%s", (const char *)c->argument); }

void check_suite_cases(check_list *list, const check_options *options) {
    static const float betas[] = {0, 1};
    const char *suite = "cases";
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        check_add(list, suite, 60, check_run_recipe, &entries[i].recipe, "case %d: %s", entries[i].number,
                  entries[i].title);
    }
    check_add(list, suite, 60, empty_expert, &betas[0], "case 7: an empty expert's gradient is exactly 0");
    check_add(list, suite, 60, empty_expert, &betas[1], "case 7: with beta 1 it is untouched");
    check_add(list, suite, 1, elsewhere, "MXFP8 is not part of this build", "case 32: a block of zeros in MXFP8");
    if (options->backend == FERRY_CUDA) return;
    const char *const gpu = "needs a GPU";
    check_add(list, suite, 1, elsewhere, gpu, "case 36: captured in a graph, replayed with another N and routing");
    check_add(list, suite, 1, elsewhere, gpu, "case 41: an all-reduce of NCCL runs on another stream");
    check_add(list, suite, 1, elsewhere, gpu, "case 42: the layer is on a device that is not the current one");
}
