/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems run in random ways, compared with the reference. Case i of seed S is case 0 of seed S + i, so
 * `--suite property --seed NUMBER --cases 1` repeats a single one.
 */
#include "cli/check/gpu.h"
#include "cli/check/session.h"

/* Draws choices for one case in order. */
typedef struct dice {
    uint64_t seed;
    int64_t drawn;
} dice;

static int64_t roll(dice *d, int64_t low, int64_t high) {
    return low + check_below(d->seed, CHECK_CHOICES, d->drawn++, high - low + 1);
}

/* 1 in n. */
static int chance(dice *d, int64_t n) { return roll(d, 1, n) == 1; }

static check_problem random_problem(dice *d) {
    static check_route *const routes[] = {check_route_random, check_route_random, check_route_distinct,
                                          check_route_skewed, check_route_holes,  check_route_holes,
                                          check_route_one,    check_route_same};
    int large = chance(d, 3); /* wide enough for the exact reference */
    check_problem p = {.seed = d->seed};
    p.tokens = roll(d, 0, large ? 150 : 300);
    p.hidden = large ? roll(d, 64, 160) : roll(d, 1, 80);
    p.intermediate = large ? roll(d, 64, 160) : roll(d, 1, 80);
    p.shared = chance(d, 2) ? 0 : roll(d, 1, large ? 160 : 80);
    p.experts = roll(d, 1, chance(d, 4) ? 40 : 12);
    p.slots = roll(d, 1, chance(d, 6) ? 12 : 4);
    p.limit = chance(d, 3) ? (float)roll(d, 2, 12) / 8 : 0;
    p.route = routes[roll(d, 0, sizeof routes / sizeof *routes - 1)];
    p.route_number = roll(d, 0, p.experts - 1);
    return p;
}

/* Uneven on purpose: a rank may get nothing, or nearly everything. */
static void random_split(dice *d, int64_t tokens, int ranks, int64_t *split) {
    for (int r = 0; r < ranks; r++) split[r] = tokens / ranks + (r < tokens % ranks);
    for (int moves = (int)roll(d, 0, 2 * ranks); moves > 0; moves--) {
        int from = (int)roll(d, 0, ranks - 1), to = (int)roll(d, 0, ranks - 1);
        int64_t some = roll(d, 0, split[from]);
        split[from] -= some;
        split[to] += some;
    }
}

typedef struct random_case {
    check_recipe recipe;
    int64_t split[CHECK_MAX_RANKS];
} random_case;

static void random_way(dice *d, const check_problem *p, random_case *out) {
    check_way *w = &out->recipe.way;
    w->ranks = (int)roll(d, 1, CHECK_MAX_RANKS);
    w->processes = chance(d, 3);
    random_split(d, p->tokens, w->ranks, out->split);
    w->split = out->split;
    w->max_tokens = chance(d, 3) ? p->tokens + roll(d, 0, 9) : 0;
    w->comm_workers = (int)roll(d, 0, w->ranks > 3 ? 1 : 3);
    w->compute_workers = (int)roll(d, 0, w->ranks > 3 ? 1 : 3);
    w->isa = chance(d, 4) ? FERRY_ISA_PORTABLE : FERRY_ISA_AUTO;
    w->ring = chance(d, 3) ? 0 : roll(d, 1, 320);
    w->minibatch = chance(d, 2) ? 0 : roll(d, 1, w->ring ? w->ring : 256);
    w->save = (check_save)roll(d, CHECK_SAVED, CHECK_RECOMPUTE);
    w->layout = (check_layout)roll(d, CHECK_SEPARATE, CHECK_TABLE);
    w->ids_dtype = chance(d, 2) ? FERRY_I64 : FERRY_I32;
    w->grad_dtype = chance(d, 3) ? FERRY_BF16 : FERRY_F32;
    w->beta = chance(d, 3) ? 1 : 0;
    w->parts_first = chance(d, 2) ? 0 : (int)roll(d, FERRY_BACKWARD_DATA, FERRY_BACKWARD_WEIGHT);
    w->symmetric = chance(d, 4);
    w->padded = chance(d, 3);
    w->scattered = chance(d, 4);
}

static void run_random(const check_case *c) {
    random_case choices = *(const random_case *)c->argument;
    choices.recipe.way.split = choices.split;
    check_case inner = {c->verdict, c->options, &choices.recipe};
    check_run_recipe(&inner);
}

void check_suite_property(check_list *list, const check_options *options) {
    int64_t cases = options->cases ? options->cases : options->long_tier ? 1500 : 80;
    for (int64_t i = 0; i < cases; i++) {
        random_case choices = {0};
        char line[160];
        dice d = {(uint64_t)(options->seed + i), 0};
        choices.recipe.problem = random_problem(&d);
        random_way(&d, &choices.recipe.problem, &choices);
        choices.recipe.way.split = choices.split;
        check_fit_problem(options, &choices.recipe.problem);
        check_fit_way(options, &choices.recipe.way);
        check_describe(&choices.recipe.problem, &choices.recipe.way, line, sizeof line);
        check_add(list, "property", 90, run_random, check_keep(list, &choices, sizeof choices), "seed %lld: %s",
                  (long long)(options->seed + i), line);
    }
}
