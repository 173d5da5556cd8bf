/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks at work. */
#include "cli/check/session.h"

#include "cli/check/gpu.h"

#include "cli/launch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for a machine with less to give than the test asks for, short enough to fail while somebody looks. */
enum { CHECK_TIMEOUT_S = 30 };

static double timeout_of(double given) { return (given > 0 ? given : CHECK_TIMEOUT_S) * check_patience(); }

void check_comm_config(const check_way *way, const ferry_bootstrap *bootstrap, ferry_comm_config *config) {
    ferry_comm_config_init(config);
    config->backend = way->backend;
    config->bootstrap = *bootstrap;
    config->device = cli_device_index(way->backend, bootstrap->rank);
    config->comm_workers = way->comm_workers;
    config->compute_workers = way->compute_workers;
    config->isa = way->isa;
    config->enter_timeout_s = timeout_of(way->enter_timeout_s);
    config->progress_timeout_s = timeout_of(way->progress_timeout_s);
    if (way->tune) way->tune(way->tune_user, bootstrap->rank, config);
}

void check_layer_config(const check_batch *batch, const check_way *way, int32_t *expert_rank,
                        ferry_layer_config *config) {
    const check_problem *p = &batch->problem;
    int64_t rows = check_way_rows(way, batch);
    ferry_layer_config_init(config);
    config->hidden = p->hidden;
    config->intermediate = p->intermediate;
    config->shared = p->shared;
    config->experts = p->experts;
    config->slots = p->slots;
    config->max_tokens = check_way_max_tokens(way, p->tokens);
    config->swiglu_limit = p->limit;
    config->minibatch_rows = way->minibatch;
    config->ring_rows = check_way_ring(way, batch);
    config->tune_file = ""; /* a test does not depend on what somebody has measured here */
    const int64_t saved[] = {[CHECK_SAVED] = rows, [CHECK_HALF] = rows / 2, [CHECK_BY_RULE] = -1};
    config->context_rows = saved[way->save];
    if (!way->scattered) return;
    for (int64_t e = 0; e < p->experts; e++) expert_rank[e] = check_way_expert_rank(way, p->experts, e);
    config->expert_rank = expert_rank;
}

ferry_status check_rank_try_open(check_rank *r, const check_case *c, const check_batch *batch, const check_way *way,
                                 const ferry_bootstrap *bootstrap) {
    *r = (check_rank){.c = c, .way = way, .rank = bootstrap->rank};
    ferry_comm_config comm_config;
    check_comm_config(way, bootstrap, &comm_config);
    ferry_status status = ferry_comm_create(&comm_config, &r->comm);
    if (status) return status;
    int32_t *expert_rank = malloc((size_t)batch->problem.experts * sizeof *expert_rank);
    if (!expert_rank) return FERRY_E_MEMORY;
    ferry_layer_config layer_config;
    check_layer_config(batch, way, expert_rank, &layer_config);
    status = ferry_layer_create(r->comm, &layer_config, &r->layer);
    free(expert_rank);
    return status;
}

/* The layer must place experts as the way says. */
static void check_placement(const check_rank *r, int64_t experts) {
    int64_t local[CHECK_MAX_RANKS] = {0};
    for (int64_t e = 0; e < experts; e++) {
        int owner = check_way_expert_rank(r->way, experts, e);
        int64_t id = ferry_layer_expert_id(r->layer, owner, local[owner]++);
        CHECK_OR_RETURN(, r->c, id == e, "expert %lld of rank %d is %lld, expected %lld", (long long)local[owner] - 1,
                        owner, (long long)id, (long long)e);
    }
    for (int owner = 0; owner < check_way_ranks(r->way); owner++) {
        int64_t got = ferry_layer_local_experts(r->layer, owner);
        CHECK_OR_RETURN(, r->c, got == local[owner] && ferry_layer_expert_id(r->layer, owner, got) == -1,
                        "rank %d has %lld experts, expected %lld", owner, (long long)got, (long long)local[owner]);
    }
}

int check_rank_open(check_rank *r, const check_case *c, const check_batch *batch, const check_way *way,
                    const ferry_bootstrap *bootstrap) {
    ferry_status status = check_rank_try_open(r, c, batch, way, bootstrap);
    if (!check_status(c, bootstrap->rank, status, FERRY_OK, r->comm ? "ferry_layer_create" : "ferry_comm_create")) {
        check_rank_close(r);
        return 0;
    }
    int rank = ferry_comm_rank(r->comm), size = ferry_comm_size(r->comm);
    if (rank != bootstrap->rank || size != bootstrap->nranks) {
        check_fail(c, "rank %d of %d says that it is rank %d of %d", bootstrap->rank, bootstrap->nranks, rank, size);
    }
    check_placement(r, batch->problem.experts);
    return 1;
}

void check_rank_close(check_rank *r) {
    ferry_layer_destroy(r->layer);
    ferry_comm_destroy(r->comm);
    r->layer = NULL;
    r->comm = NULL;
}

int check_rank_context(check_rank *r, ferry_context **context) {
    return check_status(r->c, r->rank, ferry_context_create(r->layer, NULL, context), FERRY_OK, "ferry_context_create");
}

int check_status(const check_case *c, int rank, ferry_status status, ferry_status expected, const char *doing) {
    if (status == expected) return 1;
    check_fail(c, "rank %d: %s gave %s, expected %s: %s", rank, doing, ferry_status_name(status),
               ferry_status_name(expected), status ? ferry_last_error() : "");
    return 0;
}

/* ---- Steps ---- */

/* The report must name the first bad id in the order of ranks, tokens and slots, and the sum over all ranks. */
static int check_report(check_rank *r, const check_batch *batch) {
    ferry_report report = {.size = sizeof report};
    ferry_status status = ferry_layer_poll(r->layer, &report);
    if (!check_status(r->c, r->rank, status, batch->bad_ids ? FERRY_E_BAD_ID : FERRY_OK, "ferry_layer_poll")) return 0;
    if (!batch->bad_ids) return 1;
    const check_problem *p = &batch->problem;
    int64_t first = 0;
    while (batch->ids[first] >= -1 && batch->ids[first] < p->experts) first++;
    int owner = check_way_ranks(r->way) - 1;
    while (check_way_first(r->way, p->tokens, owner) > first / p->slots) owner--;
    int64_t token = first / p->slots - check_way_first(r->way, p->tokens, owner);
    CHECK_OR_RETURN(0, r->c,
                    report.rank == owner && report.token == token && report.slot == first % p->slots &&
                        report.id == batch->ids[first] && report.count == batch->bad_ids,
                    "rank %d: the report says rank %d token %lld slot %lld id %lld count %lld, expected %d %lld %lld "
                    "%lld %lld",
                    r->rank, report.rank, (long long)report.token, (long long)report.slot, (long long)report.id,
                    (long long)report.count, owner, (long long)token, (long long)(first % p->slots),
                    (long long)batch->ids[first], (long long)batch->bad_ids);
    return check_status(r->c, r->rank, ferry_layer_poll(r->layer, &report), FERRY_OK, "the second poll");
}

/* Until the call's work is done; a fault on a GPU shows only then. */
static int finish_call(check_rank *r, check_shard *shard) {
    return check_shard_wait(shard) && check_status(r->c, r->rank, ferry_comm_error(r->comm), FERRY_OK, "the call");
}

int check_rank_forward(check_rank *r, check_shard *shard, ferry_context *context, check_result *result) {
    shard->forward.context = context;
    ferry_status status = ferry_forward(r->layer, &shard->forward);
    /* A GPU's call has returned before ids are looked at: they are in the report alone. */
    int told = shard->batch->bad_ids && r->way->backend == FERRY_CPU;
    if (!check_status(r->c, r->rank, status, told ? FERRY_E_BAD_ID : FERRY_OK, "ferry_forward")) return 0;
    if (!finish_call(r, shard)) return 0;
    check_shard_forget(shard);
    if (result) {
        check_rank_outcome *outcome = &result->rank[r->rank];
        outcome->plan.size = sizeof outcome->plan;
        outcome->forward.size = sizeof outcome->forward;
        ferry_layer_get_plan(r->layer, &outcome->plan);
        ferry_layer_stats(r->layer, &outcome->forward);
    }
    return check_report(r, shard->batch);
}

int check_rank_backward(check_rank *r, check_shard *shard, ferry_context *context, check_result *result) {
    int first = r->way->parts_first ? r->way->parts_first : FERRY_BACKWARD_ALL;
    shard->backward.context = context;
    shard->backward.parts = first;
    ferry_status status = ferry_backward(r->layer, &shard->backward);
    if (!check_status(r->c, r->rank, status, FERRY_OK, "ferry_backward")) return 0;
    if (first != FERRY_BACKWARD_ALL) {
        shard->backward.parts = FERRY_BACKWARD_ALL & ~first;
        status = ferry_backward(r->layer, &shard->backward);
        if (!check_status(r->c, r->rank, status, FERRY_OK, "the second part of ferry_backward")) return 0;
    }
    if (!finish_call(r, shard)) return 0;
    if (result) {
        result->rank[r->rank].backward.size = sizeof(ferry_stats);
        ferry_layer_stats(r->layer, &result->rank[r->rank].backward);
    }
    return 1;
}

/* ---- Whole runs ---- */

typedef struct launch {
    const check_job *job;
    check_rank_body *body;
} launch;

static int rank_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const launch *l = user;
    l->body(l->job, bootstrap, rank);
    return 0;
}

/* Ranks as threads of a child process: this one must not touch a GPU, or it could not fork ranks later. */
static int launch_apart(const cli_launch_options *options, launch *l) {
    int wait_status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) exit(cli_launch(options, rank_main, l));
    if (pid < 0 || waitpid(pid, &wait_status, 0) != pid) return 1;
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void check_launch(const check_job *job, check_rank_body *body, int deaths) {
    launch l = {job, body};
    cli_launch_options options = {
        .nranks = check_way_ranks(job->way), .processes = job->way->processes, .timeout_s = timeout_of(0)};
    int together = job->c->options->together;
    if (together && job->way->processes) {
        atomic_store(&job->c->verdict->alone, 1);
        check_fail(job->c, "ranks as processes need a test process of their own");
        return;
    }
    int apart = job->way->backend == FERRY_CUDA && !job->way->processes && !together;
    int code = apart ? launch_apart(&options, &l) : cli_launch(&options, rank_main, &l);
    if (code && !deaths) check_fail(job->c, "a rank ended with exit code %d", code);
}

static void run_steps(const check_job *job, check_rank *r, check_shard *shard) {
    ferry_context *context = NULL;
    if (!job->batch->problem.forward_only && !check_rank_context(r, &context)) return;
    if (check_rank_forward(r, shard, context, job->result) &&
        (!context || check_rank_backward(r, shard, context, job->result))) {
        check_shard_gather(shard, job->result);
    }
    ferry_context_destroy(context);
}

static void run_rank(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
        run_steps(job, &r, &shard);
        check_shard_free(&shard);
    }
    check_rank_close(&r);
}

check_result *check_run(const check_case *c, const check_batch *batch, const check_way *way) {
    check_result *result = check_result_make(c, batch, way, 0);
    if (!result) return NULL;
    check_way fitted = *way;
    check_fit_way(c->options, &fitted);
    check_job job = {c, batch, &fitted, result, NULL};
    check_launch(&job, run_rank, 0);
    if (!check_failed(c)) return result;
    check_result_free(result);
    return NULL;
}

void check_run_recipe(const check_case *c) {
    check_recipe recipe = *(const check_recipe *)c->argument;
    recipe.way.backend = (ferry_backend)c->options->backend;
    check_fit_problem(c->options, &recipe.problem);
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&recipe.problem, &batch), "no memory for the batch");
    check_result *result = check_run(c, &batch, &recipe.way);
    if (result) check_against_reference(c, &batch, &recipe.way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

int check_way_possible(const check_case *c, const check_way *way) {
    ferry_thread_group *group = NULL;
    ferry_comm_config config;
    ferry_bootstrap bootstrap;
    ferry_comm *comm = NULL;
    if (way->backend == FERRY_CUDA) {
        if (way->isa) check_skip(c, "instruction sets are the CPU's");
        return !way->isa;
    }
    ferry_status status = ferry_thread_group_create(1, &group);
    if (!status) status = ferry_thread_group_bootstrap(group, 0, &bootstrap);
    if (!status) {
        check_comm_config(way, &bootstrap, &config);
        status = ferry_comm_create(&config, &comm);
    }
    if (status == FERRY_E_UNSUPPORTED)
        check_skip(c, "%s", ferry_last_error());
    else
        check_status(c, 0, status, FERRY_OK, "trying the backend");
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
    return status == FERRY_OK;
}
