/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every pull, product and push sleeps 3 ms. Were the roles to wait for each other, a call would take the sum of the
 * sleeps; what is demanded is 0.6 of it, and that one macrobatch's results are pushed while the next one's rows come.
 */
#include "cli/check/session.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

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
    double sleep_s, wall;
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
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard) && check_rank_context(&r, &context) &&
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
static int intersections(const record *r, int64_t macrobatches, int step) {
    int count = 0;
    for (int m = 0; m < (int)macrobatches; m++) {
        unit push = span(r, FERRY_PHASE_PUSH, m), pull = span(r, FERRY_PHASE_PULL, m + step);
        count += push.begin < pull.end && pull.begin < push.end;
    }
    return count;
}

typedef struct overlap_kind {
    const char *name;
    check_way way;
    int meets; /* 1: a forward's macrobatch must be pushed while the next one is pulled: there are workers for both */
} overlap_kind;

/* One call of one rank: 1 when it overlaps as demanded. `line` says how it did. */
static int judge(const overlap_kind *kind, record *r, int backward, int64_t macrobatches, char *line, size_t room) {
    int met = intersections(r, macrobatches, backward ? 1 : -1), in_range = r->count >= 60 && r->count <= MOST_UNITS;
    double slept = r->sleep_s * r->count;
    snprintf(line, room, "%d units, %.3f s for %.3f s of sleep: %.2f; %d of %lld macrobatches meet the next", r->count,
             r->wall, slept, r->wall / slept, met, (long long)macrobatches);
    return in_range && r->wall <= 0.6 * slept && (backward || !kind->meets || met > 0);
}

/* All ranks and calls. A machine that is busy with something else spoils a measurement, so the last attempt of
 * several decides. */
static int judge_all(const check_case *c, overlap_run *run, const check_result *result, int last) {
    for (int i = 0; i < 4; i++) {
        int rank = i / 2, backward = i % 2;
        const check_rank_outcome *outcome = &result->rank[rank];
        char line[160];
        int good = judge(c->argument, backward ? &run->backward[rank] : &run->forward[rank], backward,
                         backward ? outcome->backward.macrobatches : outcome->forward.macrobatches, line, sizeof line);
        if (!good && !last) return 0;
        if (good)
            check_note(c, "%s, rank %d: %s\n", backward ? "backward" : "forward", rank, line);
        else
            check_fail(c, "%s, rank %d: %s; expected at most 0.6%s", backward ? "backward" : "forward", rank, line,
                       ((const overlap_kind *)c->argument)->meets ? ", and in forward that some meet" : "");
    }
    return 1;
}

static void overlap(const check_case *c) {
    enum { ATTEMPTS = 4 };
    static overlap_run run;
    if (check_patience() > 1) {
        check_skip(c, "times mean little under a sanitizer");
        return;
    }
    const check_problem problem = {
        .seed = 41, .tokens = 1600, .hidden = 64, .intermediate = 64, .experts = 2, .slots = 2};
    check_way way = ((const overlap_kind *)c->argument)->way;
    way.backend = (ferry_backend)c->options->backend;
    way.ranks = 2;
    way.ring = 256;
    way.minibatch = 64;
    way.tune = use_observer;
    way.tune_user = &run;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, &run};
    for (int attempt = 1, good = 0; result && !good && !check_failed(c); attempt++) {
        memset(&run, 0, sizeof run);
        for (int r = 0; r < 2; r++) run.forward[r].sleep_s = run.backward[r].sleep_s = 0.003;
        check_launch(&job, overlap_body, 0);
        if (!check_failed(c)) good = judge_all(c, &run, result, attempt == ATTEMPTS);
    }
    if (!check_failed(c)) check_against_reference(c, &batch, &way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

void check_suite_overlap(check_list *list, const check_options *options) {
    static const overlap_kind kinds[] = {
        {"2 + 2 workers", {.comm_workers = 2, .compute_workers = 2}, 1},
        {"1 + 2 workers", {.comm_workers = 1, .compute_workers = 2}, 0},
        {"1 + 2 workers, recomputed", {.comm_workers = 1, .compute_workers = 2, .save = CHECK_RECOMPUTE}, 0},
    };
    (void)options;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_add(list, "overlap", 60, overlap, &kinds[i], "every pull, product and push sleeps 3 ms: %s",
                  kinds[i].name);
    }
}
