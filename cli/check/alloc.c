/* SPDX-License-Identifier: Apache-2.0 */
/* The N-th allocation of one rank fails, once and for ever after: an error by name, nothing leaked, no hang. */
#include "cli/check/hooks.h"
#include "cli/check/session.h"

#include "cli/launch.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { FAILING_RANK = 0, MOST_ALLOCATIONS = 2000, ALLOC_TIMEOUT_S = 1 };

typedef struct alloc_kind {
    const char *name;
    int ranks, processes, forever;
} alloc_kind;

/* In shared memory. */
typedef struct alloc_run {
    check_hooks hooks[CHECK_MAX_RANKS];
    _Atomic int status[CHECK_MAX_RANKS]; /* the first failure of each rank */
} alloc_run;

static void use_hooks(void *user, int rank, ferry_comm_config *config) {
    alloc_run *run = user;
    config->allocator = check_hooks_allocator(&run->hooks[rank]);
}

/* Everything that allocates, until something fails. */
static ferry_status work(check_rank *r, check_shard *shard, ferry_context **context) {
    ferry_status status = ferry_context_create(r->layer, NULL, context);
    if (status) return status;
    shard->forward.context = shard->backward.context = *context;
    status = ferry_forward(r->layer, &shard->forward);
    return status ? status : ferry_backward(r->layer, &shard->backward);
}

static void alloc_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    alloc_run *run = job->user;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    if (!check_shard_make(job->c, job->batch, job->way, rank, NULL, &shard)) return;
    ferry_status status = check_rank_try_open(&r, job->c, job->batch, job->way, bootstrap);
    if (!status) status = work(&r, &shard, &context);
    ferry_context_destroy(context);
    check_rank_close(&r);
    check_shard_free(&shard);
    atomic_store(&run->status[rank], (int)status);
}

static void judge(const check_case *c, const alloc_run *run, const alloc_kind *kind, int64_t n) {
    int failing = atomic_load(&run->status[FAILING_RANK]);
    for (int r = 0; r < kind->ranks; r++) {
        const check_hooks *hooks = &run->hooks[r];
        int status = atomic_load(&run->status[r]);
        CHECK_OR_RETURN(, c, atomic_load(&hooks->live_blocks) == 0,
                        "allocation %lld: rank %d leaks %lld blocks, %lld bytes", (long long)n, r,
                        (long long)atomic_load(&hooks->live_blocks), (long long)atomic_load(&hooks->live_bytes));
        CHECK_OR_RETURN(, c, atomic_load(&hooks->wrong_sizes) == 0,
                        "allocation %lld: rank %d gives blocks back with another size", (long long)n, r);
        CHECK_OR_RETURN(, c, (status == FERRY_OK) == (failing == FERRY_OK),
                        "allocation %lld: rank %d ends with %s, "
                        "rank %d with %s",
                        (long long)n, r, ferry_status_name((ferry_status)status), FAILING_RANK,
                        ferry_status_name((ferry_status)failing));
    }
    int expected = atomic_load(&run->hooks[FAILING_RANK].failed) ? FERRY_E_MEMORY : FERRY_OK;
    CHECK_OR_RETURN(, c, failing == expected, "allocation %lld: rank %d ends with %s, expected %s", (long long)n,
                    FAILING_RANK, ferry_status_name((ferry_status)failing), ferry_status_name((ferry_status)expected));
}

static void fail_each(const check_case *c) {
    const alloc_kind *kind = c->argument;
    const check_problem problem = {
        .seed = 31, .tokens = 40, .hidden = 24, .intermediate = 16, .shared = 8, .experts = 5, .slots = 2};
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = kind->ranks, .processes = kind->processes};
    way.enter_timeout_s = way.progress_timeout_s = ALLOC_TIMEOUT_S;
    way.tune = use_hooks;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    alloc_run *run = cli_shared_alloc(sizeof *run);
    CHECK_OR_RETURN(, c, run, "no memory for counters");
    way.tune_user = run;
    check_job job = {c, &batch, &way, NULL, run};
    int64_t n = 1;
    for (int failed = 1; failed && n < MOST_ALLOCATIONS && !check_failed(c); n++) {
        *run = (alloc_run){0};
        run->hooks[FAILING_RANK].fail_at = n;
        run->hooks[FAILING_RANK].forever = kind->forever;
        check_launch(&job, alloc_body, 0);
        if (!check_failed(c)) judge(c, run, kind, n);
        failed = atomic_load(&run->hooks[FAILING_RANK].failed);
    }
    if (!check_failed(c) && n < 5) check_fail(c, "only %lld allocations went through the hooks", (long long)n - 2);
    cli_shared_free(run, sizeof *run);
    check_batch_free(&batch);
}

void check_suite_alloc(check_list *list, const check_options *options) {
    static const alloc_kind kinds[] = {
        {"1 rank, once", 1, 0, 0},      {"1 rank, for ever", 1, 0, 1},  {"3 ranks, once", 3, 0, 0},
        {"3 ranks, for ever", 3, 0, 1}, {"2 processes, once", 2, 1, 0}, {"2 processes, for ever", 2, 1, 1},
    };
    (void)options;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_add(list, "alloc", 90, fail_each, &kinds[i], "every allocation of a rank fails in turn: %s",
                  kinds[i].name);
    }
}
