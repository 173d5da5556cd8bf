/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every pull, product and push sleeps 3 ms. Were the roles to wait for each other, a call would take the sum of the
 * sleeps; what is demanded is 0.6 of it, and that one macrobatch's results are pushed while the next one's rows come.
 */
#include "cli/check/session.h"

#include <stdatomic.h>

enum { MOST_UNITS = 4096, MOST_WORKERS = 16 };

typedef struct unit {
    ferry_phase phase;
    int macrobatch;
    double begin, end;
} unit;

/* Of one rank and one call. */
typedef struct record {
    unit units[MOST_UNITS];
    _Atomic int count;
    int open[MOST_WORKERS + 1]; /* the unit that a worker is in; each worker has its own */
    double sleep_s, slept, wall;
} record;

static int sleeps_in(ferry_phase phase) {
    return phase == FERRY_PHASE_PULL || phase == FERRY_PHASE_COMPUTE || phase == FERRY_PHASE_PUSH;
}

static int observe(void *user, const ferry_event *event) {
    record *r = user;
    if (event->wait || !sleeps_in(event->phase) || event->worker >= MOST_WORKERS) return 0;
    int *open = &r->open[event->worker + 1];
    if (!event->begin) {
        r->units[*open].end = check_now();
        return 0;
    }
    int index = atomic_fetch_add(&r->count, 1);
    if (index >= MOST_UNITS) return 0;
    *open = index;
    r->units[index] = (unit){event->phase, event->macrobatch, check_now(), 0};
    check_sleep(r->sleep_s);
    return 0;
}

typedef struct overlap_run {
    record forward[2], backward[2];
    record *current[2]; /* by rank; set between calls */
} overlap_run;

static int observe_rank0(void *user, const ferry_event *event) {
    return observe(((overlap_run *)user)->current[0], event);
}

static int observe_rank1(void *user, const ferry_event *event) {
    return observe(((overlap_run *)user)->current[1], event);
}

static void use_observer(void *user, int rank, ferry_comm_config *config) {
    config->observer = (ferry_observer){rank ? observe_rank1 : observe_rank0, user};
}

static void overlap_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    overlap_run *run = job->user;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    run->current[rank] = &run->forward[rank];
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard) &&
        check_status(job->c, rank, ferry_context_create(r.layer, NULL, &context), FERRY_OK, "ferry_context_create") &&
        check_status(job->c, rank, ferry_barrier(r.comm), FERRY_OK, "ferry_barrier")) {
        double begin = check_now();
        int good = check_rank_forward(&r, &shard, context, job->result);
        run->forward[rank].wall = check_now() - begin;
        run->current[rank] = &run->backward[rank];
        begin = check_now();
        if (good && check_rank_backward(&r, &shard, context, job->result)) check_shard_gather(&shard, job->result);
        run->backward[rank].wall = check_now() - begin;
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

/* ---- Judging ---- */

/* From the first begin to the last end of a phase of a macrobatch; begin > end when there is none. */
static unit span(const record *r, ferry_phase phase, int macrobatch) {
    unit all = {phase, macrobatch, 1e300, -1e300};
    for (int i = 0; i < r->count; i++) {
        const unit *u = &r->units[i];
        if (u->phase != phase || u->macrobatch != macrobatch) continue;
        if (u->begin < all.begin) all.begin = u->begin;
        if (u->end > all.end) all.end = u->end;
    }
    return all;
}

/* How many macrobatches' pushes intersect the next one's pulls; `step` leads to the next in the order of the walk. */
static int intersections(const record *r, int macrobatches, int step) {
    int count = 0;
    for (int m = 0; m < macrobatches; m++) {
        unit push = span(r, FERRY_PHASE_PUSH, m), pull = span(r, FERRY_PHASE_PULL, m + step);
        count += push.begin < pull.end && pull.begin < push.end;
    }
    return count;
}

static void judge(const check_case *c, record *r, int rank, const char *call, int64_t macrobatches, int step) {
    enum { LEAST_UNITS = 60 };
    if (r->count > MOST_UNITS || r->count < LEAST_UNITS) {
        check_fail(c, "%s, rank %d: %d units, expected %d to %d", call, rank, r->count, LEAST_UNITS, MOST_UNITS);
        return;
    }
    for (int i = 0; i < r->count; i++) r->slept += r->sleep_s;
    int met = intersections(r, (int)macrobatches, step);
    check_note(c, "%s, rank %d: %d units, %.3f s for %.3f s of sleep: %.2f; %d of %lld macrobatches meet the next\n",
               call, rank, r->count, r->wall, r->slept, r->wall / r->slept, met, (long long)macrobatches);
    CHECK_OR_RETURN(, c, r->wall <= 0.6 * r->slept, "%s, rank %d: %.3f s for %.3f s of sleep: %.2f, bound 0.6", call,
                    rank, r->wall, r->slept, r->wall / r->slept);
    CHECK_OR_RETURN(, c, met > 0, "%s, rank %d: no macrobatch is pushed while the next one is pulled (of %lld)", call,
                    rank, (long long)macrobatches);
}

typedef struct overlap_kind {
    const char *name;
    check_way way;
} overlap_kind;

static void overlap(const check_case *c) {
    static overlap_run run;
    const overlap_kind *kind = c->argument;
    const check_problem problem = {.seed = 41, .tokens = 1600, .hidden = 64, .intermediate = 64, .experts = 2,
                                   .slots = 2};
    check_way way = kind->way;
    way.backend = (ferry_backend)c->options->backend;
    way.ranks = 2;
    way.ring = 256;
    way.minibatch = 64;
    way.tune = use_observer;
    way.tune_user = &run;
    for (int r = 0; r < 2; r++) run.forward[r].sleep_s = run.backward[r].sleep_s = 0.003;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, &run};
    if (result) check_launch(&job, overlap_body, 0);
    for (int r = 0; r < 2 && !check_failed(c); r++) {
        judge(c, &run.forward[r], r, "forward", result->rank[r].forward.macrobatches, -1);
        judge(c, &run.backward[r], r, "backward", result->rank[r].backward.macrobatches, 1);
    }
    if (!check_failed(c)) check_against_reference(c, &batch, &way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

void check_suite_overlap(check_list *list, const check_options *options) {
    static const overlap_kind kinds[] = {
        {"1 + 2 workers", {.comm_workers = 1, .compute_workers = 2}},
        {"1 + 2 workers, recomputed", {.comm_workers = 1, .compute_workers = 2, .save = CHECK_RECOMPUTE}},
        {"2 + 2 workers", {.comm_workers = 2, .compute_workers = 2}},
    };
    (void)options;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_add(list, "overlap", 60, overlap, &kinds[i], "every pull, product and push sleeps 3 ms: %s",
                  kinds[i].name);
    }
}
