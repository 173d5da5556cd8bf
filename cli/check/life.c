/* SPDX-License-Identifier: Apache-2.0 */
/* Several calls on one layer: contexts in flight and in any order, changing N, accumulation, late ranks. */
#include "cli/check/life.h"
#include "cli/check/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Scripts ---- */

enum { BATCHES = 3, CONTEXTS = 3 };

/*
 * Steps of four characters: "fA0 " forward of batch A into context 0 ('-': none), "bA0 " backward of A from context 0,
 * "d.0 " destroy context 0. Every batch that is run backward, or forward without context, must have the bits that it
 * has when it is run alone.
 */
typedef struct script {
    const char *name, *steps;
    check_way way;
    check_problem batch[BATCHES];
    const int64_t *split[BATCHES]; /* tokens of each rank; NULL: as even as possible */
    int two_layers;                /* batch B has a layer of its own on the same communicator */
} call_script;

#define SPLIT(...)                                                                                                     \
    (const int64_t[]) { __VA_ARGS__ }
#define SIZES .hidden = 72, .intermediate = 40, .experts = 7, .slots = 2, .shared = 24, .limit = 1.5f
#define BATCH(s, n)                                                                                                    \
    { .seed = s, .tokens = n, SIZES, .route = check_route_holes }

#define CROWD .hidden = 72, .intermediate = 40, .experts = 6, .slots = 2, .route = route_crowd, .route_number = 205

static int64_t route_first_rank(const check_problem *p, int64_t token, int64_t slot) {
    return token < p->route_number ? check_route_random(p, token, slot) : -1;
}

/* All slots of the first tokens to one expert, whose rank then has more rows than its context holds. */
static int64_t route_crowd(const check_problem *p, int64_t token, int64_t slot) {
    return token < p->route_number ? 4 : check_route_random(p, token, slot);
}

static const call_script scripts[] = {
    {"case 35: two forwards, backward of the first, then of the second",
     "fA0 fB1 bA0 bB1 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {BATCH(1, 90), BATCH(2, 77)}},
    {"two forwards, backward of the second, then of the first",
     "fA0 fB1 bB1 bA0 ",
     {.ranks = 2, .max_tokens = 60, .ring = 64},
     .batch = {BATCH(1, 90), BATCH(2, 77)}},
    {"three forwards recomputed through a small ring, as processes",
     "fA0 fB1 fC2 bB1 bC2 bA0 ",
     {.ranks = 3, .processes = 1, .max_tokens = 60, .ring = 64, .save = CHECK_RECOMPUTE},
     .batch = {BATCH(1, 90), BATCH(2, 77), BATCH(3, 31)}},
    {"half saved, the ring overwritten before the backward",
     "fA0 fB- bA0 fC1 bC1 ",
     {.ranks = 2, .max_tokens = 60, .ring = 128, .save = CHECK_HALF},
     .batch = {BATCH(1, 90), {.seed = 2, .tokens = 77, SIZES, .forward_only = 1}, BATCH(3, 31)}},
    {"recomputed, the ring overwritten before the backward",
     "fA0 fB- bA0 ",
     {.ranks = 2, .max_tokens = 60, .save = CHECK_RECOMPUTE},
     .batch = {BATCH(1, 90), {.seed = 2, .tokens = 77, SIZES, .forward_only = 1}}},
    /* Ranks 0 and 1 have two experts and room for 8 blocks of rows, 2 and 3 one and room for 6, rank 2 gets 7. */
    {"rows beyond one rank's context but no other's, two forwards",
     "fA0 fB1 bA0 bB1 ",
     {.ranks = 4, .max_tokens = 64, .save = CHECK_BY_RULE},
     .batch = {{.seed = 1, .tokens = 256, CROWD}, {.seed = 2, .tokens = 256, CROWD}}},
    {"a context is used again",
     "fA0 bA0 fB0 bB0 fC0 bC0 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {BATCH(1, 90), BATCH(2, 77), BATCH(3, 101)}},
    {"a context is destroyed without backward",
     "fA0 d.0 fB1 bB1 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {BATCH(1, 90), BATCH(2, 77)}},
    {"forward without context, then with one",
     "fA- fB0 bB0 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {{.seed = 1, .tokens = 90, SIZES, .forward_only = 1}, BATCH(2, 77)}},
    {"case 20: N odd and different on every rank and step",
     "fA0 bA0 fB0 bB0 fC0 bC0 ",
     {.ranks = 3, .max_tokens = 60},
     .batch = {BATCH(1, 35), BATCH(2, 103), BATCH(3, 63)},
     .split = {SPLIT(1, 3, 31), SPLIT(59, 7, 37), SPLIT(0, 5, 58)}},
    {"case 16: only rank 0 has live slots, then N doubles",
     "fA0 bA0 fB0 bB0 ",
     {.ranks = 3, .max_tokens = 64},
     .batch = {{.seed = 1, .tokens = 90, SIZES, .route = route_first_rank, .route_number = 30}, BATCH(2, 180)}},
    {"case 34: two layers in flight on one communicator",
     "fA0 fB1 bA0 bB1 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {BATCH(1, 90), {.seed = 2, .tokens = 77, .hidden = 40, .intermediate = 33, .experts = 5, .slots = 3}},
     .two_layers = 1},
    {"no tokens between two batches",
     "fA0 fB1 fC2 bC2 bB1 bA0 ",
     {.ranks = 2, .max_tokens = 60},
     .batch = {BATCH(1, 90), BATCH(2, 0), BATCH(3, 63)}},
    {"data part of one, everything of the other, both parts apart",
     "fA0 fB1 bB1 bA0 ",
     {.ranks = 2, .processes = 1, .max_tokens = 60, .parts_first = FERRY_BACKWARD_DATA, .save = CHECK_RECOMPUTE},
     .batch = {BATCH(1, 90), BATCH(2, 77)}},
};

typedef struct script_run {
    const call_script *script;
    check_batch batch[BATCHES];
    check_way way[BATCHES];
    check_result *result[BATCHES];
} script_run;

/* One rank's things. */
typedef struct script_rank {
    const script_run *run;
    check_rank rank[2]; /* the second has the communicator of the first and the second layer */
    check_shard shard[BATCHES];
    ferry_context *context[CONTEXTS];
} script_rank;

static check_rank *rank_of(script_rank *s, int batch) { return &s->rank[s->run->script->two_layers ? batch : 0]; }

static int run_step(script_rank *s, const check_case *c, const char *step) {
    int batch = step[1] == '.' ? 0 : step[1] - 'A', context = step[2] - '0';
    check_rank *rank = rank_of(s, batch);
    if (step[0] == 'd') {
        ferry_context_destroy(s->context[context]);
        s->context[context] = NULL;
        return 1;
    }
    if (step[0] == 'b') {
        if (!check_rank_backward(rank, &s->shard[batch], s->context[context], NULL)) return 0;
        check_shard_gather(&s->shard[batch], s->run->result[batch]);
        return 1;
    }
    if (!check_shard_make(c, &s->run->batch[batch], &s->run->way[batch], rank->rank, rank->comm, &s->shard[batch])) {
        return 0;
    }
    if (step[2] == '-') {
        if (!check_rank_forward(rank, &s->shard[batch], NULL, NULL)) return 0;
        check_shard_gather(&s->shard[batch], s->run->result[batch]);
        return 1;
    }
    if (!s->context[context] && !check_rank_context(rank, &s->context[context])) return 0;
    return check_rank_forward(rank, &s->shard[batch], s->context[context], NULL);
}

static int open_second_layer(script_rank *s, const check_case *c) {
    const script_run *run = s->run;
    s->rank[1] = s->rank[0];
    s->rank[1].layer = NULL;
    if (!run->script->two_layers) return 1;
    ferry_layer_config config;
    check_layer_config(&run->batch[1], &run->way[1], NULL, &config);
    return check_status(c, s->rank[0].rank, ferry_layer_create(s->rank[0].comm, &config, &s->rank[1].layer), FERRY_OK,
                        "ferry_layer_create of the second layer");
}

static void script_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    script_rank s = {.run = job->user};
    (void)rank;
    if (!check_rank_open(&s.rank[0], job->c, job->batch, job->way, bootstrap)) return;
    int good = open_second_layer(&s, job->c);
    for (const char *step = s.run->script->steps; *step && good; step += 4) good = run_step(&s, job->c, step);
    for (int i = 0; i < CONTEXTS; i++) ferry_context_destroy(s.context[i]);
    for (int i = 0; i < BATCHES; i++) check_shard_free(&s.shard[i]);
    ferry_layer_destroy(s.rank[1].layer);
    check_rank_close(&s.rank[0]);
}

/* A batch whose gradients or, without context, whose outputs the script asks for. */
static int is_judged(const call_script *script, int batch) {
    char backward[] = {'b', (char)('A' + batch), '\0'}, alone[] = {'f', (char)('A' + batch), '-', '\0'};
    return strstr(script->steps, backward) || strstr(script->steps, alone);
}

static void run_script(const check_case *c) {
    const call_script *script = c->argument;
    script_run run = {.script = script};
    int64_t most = 0;
    int largest = 0;
    for (int i = 0; i < BATCHES; i++) {
        check_problem problem = script->batch[i];
        if (problem.hidden == 0) continue;
        check_fit_problem(c->options, &problem);
        CHECK_OR_RETURN(, c, check_batch_make(&problem, &run.batch[i]), "no memory for the batch");
        run.way[i] = script->way;
        run.way[i].backend = (ferry_backend)c->options->backend;
        run.way[i].split = script->split[i];
        check_fit_way(c->options, &run.way[i]);
        run.result[i] = check_result_make(c, &run.batch[i], &run.way[i], 0);
        if (!run.result[i]) return;
        if (script->batch[i].tokens > most && !script->two_layers) largest = i;
        if (script->batch[i].tokens > most) most = script->batch[i].tokens;
    }
    check_job job = {c, &run.batch[largest], &run.way[largest], NULL, &run};
    check_launch(&job, script_body, 0);
    for (int i = 0; i < BATCHES; i++) {
        if (is_judged(script, i) && !check_failed(c)) {
            char what[32];
            snprintf(what, sizeof what, "batch %c", 'A' + i);
            check_result *alone = check_run(c, &run.batch[i], &run.way[i]);
            if (alone) check_same_bits(c, alone, run.result[i], what);
            check_result_free(alone);
        }
        check_result_free(run.result[i]);
        check_batch_free(&run.batch[i]);
    }
}

/* ---- Accumulation ---- */

static double round_to(ferry_dtype dtype, float value) {
    return dtype == FERRY_BF16 ? (double)check_widen(check_bf16(value)) : (double)value;
}

/* One micro-step: `total` becomes round(total + sum), which is computed here from a run with beta 0 and F32. */
static void micro_step(const check_case *c, const check_problem *problem, ferry_dtype dtype, check_result **total) {
    check_way plain = {.backend = (ferry_backend)c->options->backend, .ranks = 2, .ring = 64};
    check_way way = plain;
    way.grad_dtype = dtype;
    way.beta = *total ? 1 : 0;
    way.old = *total;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(problem, &batch), "no memory for the batch");
    check_result *sum = check_run(c, &batch, &plain);
    check_result *next = sum ? check_run(c, &batch, &way) : NULL;
    for (int id = CHECK_DGATE; id < CHECK_TENSOR_COUNT && next; id++) {
        for (int64_t i = 0; i < next->tensor[id].count; i++) {
            float old = *total ? (float)check_value(&(*total)->tensor[id], i) : 0;
            double expected = round_to(dtype, old + (float)check_value(&sum->tensor[id], i));
            if (check_value(&next->tensor[id], i) == expected) continue;
            check_fail(c, "step from token %lld: %s element %lld is %.9g, expected %.9g exactly",
                       (long long)problem->first, check_tensor_name((check_tensor_id)id), (long long)i,
                       check_value(&next->tensor[id], i), expected);
            break;
        }
    }
    check_result_free(sum);
    check_result_free(*total);
    *total = next;
    check_batch_free(&batch);
}

/* Four micro-steps in the documented order, and near one large step. */
static void accumulate(const check_case *c) {
    enum { STEPS = 4, TOKENS = 40 };
    ferry_dtype dtype = *(const ferry_dtype *)c->argument;
    check_problem problem = {.seed = 5, .tokens = TOKENS, SIZES};
    check_result *total = NULL;
    for (int step = 0; step < STEPS && !check_failed(c); step++) {
        problem.first = step * TOKENS;
        micro_step(c, &problem, dtype, &total);
    }
    problem.first = 0;
    problem.tokens = STEPS * TOKENS;
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 2};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *large = total ? check_run(c, &batch, &way) : NULL;
    for (int id = CHECK_DGATE; id <= CHECK_DDOWN && large; id++) {
        int64_t worst;
        double error = check_error(&total->tensor[id], &large->tensor[id], 0, &worst);
        double bound = dtype == FERRY_BF16 ? 6e-3 : 1e-5;
        if (!(error <= bound)) {
            check_fail(c, "%s of four steps differs from one large step by %g, bound %g",
                       check_tensor_name((check_tensor_id)id), error, bound);
        }
    }
    check_result_free(large);
    check_result_free(total);
    check_batch_free(&batch);
}

/* ---- Late ranks ---- */

typedef struct late_start {
    double seconds;
    int processes;
} late_start;

static void late_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    double late = rank == 1 ? *(const double *)job->user : 0;
    check_sleep(late);
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    check_sleep(late);
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
        if (check_rank_context(&r, &context) && check_rank_forward(&r, &shard, context, NULL)) {
            check_sleep(late);
            if (check_rank_backward(&r, &shard, context, NULL)) check_shard_gather(&shard, job->result);
        }
        ferry_context_destroy(context);
        check_shard_free(&shard);
    }
    check_rank_close(&r);
}

/* Entering a call may take longer than progress inside one. */
static void start_late(const check_case *c) {
    const late_start *argument = c->argument;
    double late = argument->seconds;
    const check_problem problem = BATCH(9, 50);
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 3, .processes = argument->processes};
    check_fit_way(c->options, &way);
    way.enter_timeout_s = 10 + 3 * late;
    way.progress_timeout_s = late / 2;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, &late};
    if (result) check_launch(&job, late_body, 0);
    if (result && !check_failed(c)) check_against_reference(c, &batch, &way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

void check_suite_life(check_list *list, const check_options *options) {
    static const ferry_dtype dtypes[] = {FERRY_F32, FERRY_BF16};
    static const late_start brief[] = {{3, 0}, {3, 1}}, full[] = {{90, 0}, {90, 1}};
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        check_add(list, "life", 60, run_script, &scripts[i], "%s", scripts[i].name);
    }
    check_add(list, "life", 60, accumulate, &dtypes[0], "case 44: four micro-steps accumulate in the documented order");
    check_add(list, "life", 60, accumulate, &dtypes[1], "case 44: the same with BF16 gradients");
    for (int i = 0; i < 2; i++) {
        const late_start *late = options->long_tier ? &full[i] : &brief[i];
        check_add(list, "life", 60 + 4 * late->seconds, start_late, late,
                  "case 38: a rank is %.0f s late to every call, %s", late->seconds,
                  late->processes ? "processes" : "threads");
    }
    /* What a CPU call refuses, a GPU call may report later. */
    if (options->backend == FERRY_CPU) check_add_errors(list);
}
