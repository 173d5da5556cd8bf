/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank dies, stops or is slow at a chosen point of a call. Death: its process is killed, or as threads all of its
 * workers leave. Then the others must return an error that names it within the deadline, be destroyed, and the same
 * job must start again at once. A delay below the deadline must change nothing.
 */
#include "cli/check/hooks.h"
#include "cli/check/job.h"

#include "cli/launch.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3, VICTIM = 1, DEADLINE_S = 1, DELAYED_DEADLINE_S = 10 };

static const char *const phase_names[] = {
#define PHASE_TEXT(NAME, name) #name,
    FERRY_PHASE_MAP(PHASE_TEXT)
#undef PHASE_TEXT
};
static const char *const kind_names[] = {[CHECK_KILL] = "killed", [CHECK_STOP] = "stopped", [CHECK_DELAY] = "delayed"};

typedef struct fault {
    check_fault_kind kind;
    ferry_phase phase;
    int backward, processes;
} fault;

/* In shared memory. */
typedef struct fault_run {
    fault fault;
    char job_name[64];
    _Atomic int fired;    /* 1: the phase came, 2: the fault is there */
    _Atomic int gone;     /* threads: the victim's workers leave */
    _Atomic int reported; /* ranks that have returned from the call */
    _Atomic int victim_pid;
    double fired_at; /* written before `fired` becomes 2 */
} fault_run;

/* ---- The victim ---- */

static void wait_for_reports(const fault_run *run) {
    double give_up = check_now() + 20 * check_patience();
    while (atomic_load(&run->reported) < RANKS - 1 && check_now() < give_up) check_sleep(0.002);
}

static int strike(fault_run *run) {
    int processes = run->fault.processes;
    run->fired_at = check_now();
    atomic_store(&run->victim_pid, (int)getpid());
    atomic_store(&run->fired, 2);
    switch (run->fault.kind) {
    case CHECK_KILL:
        if (processes) raise(SIGKILL);
        atomic_store(&run->gone, 1);
        return 1;
    case CHECK_STOP:
        if (processes)
            kill(getpid(), SIGSTOP); /* the last of the others to report ends it */
        else
            wait_for_reports(run);
        return 0;
    case CHECK_DELAY:
        check_sleep(0.5);
        return 0;
    }
    return 0;
}

static int victim_event(void *user, const ferry_event *event) {
    fault_run *run = user;
    if (!event->begin) return 0;
    if (atomic_load(&run->gone)) return 1;
    if (event->wait || event->phase != run->fault.phase || event->backward != run->fault.backward) return 0;
    int never = 0;
    return atomic_compare_exchange_strong(&run->fired, &never, 1) ? strike(run) : 0;
}

static void watch_victim(void *user, int rank, ferry_comm_config *config) {
    if (rank == VICTIM) config->observer = (ferry_observer){victim_event, user};
}

/* ---- A run with the fault ---- */

/* What a rank that is not the victim must see; `status` and ferry_last_error() are its call's, which began `begin`. */
static void judge_survivor(const check_case *c, fault_run *run, check_rank *r, check_shard *shard, ferry_status status,
                           double begin) {
    char sentence[512], name[16];
    snprintf(sentence, sizeof sentence, "%s", ferry_last_error());
    snprintf(name, sizeof name, "rank %d", VICTIM);
    int fired = atomic_load(&run->fired); /* before fired_at is read */
    double since = fired == 2 && run->fired_at > begin ? run->fired_at : begin, late = check_now() - since;
    if (atomic_fetch_add(&run->reported, 1) + 1 == RANKS - 1 && run->fault.kind == CHECK_STOP && run->fault.processes) {
        kill(atomic_load(&run->victim_pid), SIGCONT);
    }
    CHECK_OR_RETURN(, c, fired == 2, "rank %d: the phase never came, the call gave %s: %s", r->rank,
                    ferry_status_name(status), sentence);
    CHECK_OR_RETURN(, c, status == FERRY_E_TIMEOUT || status == FERRY_E_PEER, "rank %d: the call gave %s: %s", r->rank,
                    ferry_status_name(status), sentence);
    CHECK_OR_RETURN(, c, strstr(sentence, name), "rank %d: the error does not name %s: %s", r->rank, name, sentence);
    CHECK_OR_RETURN(, c, late <= (DEADLINE_S + 2) * check_patience(),
                    "rank %d: the error took %.1f s, the deadline is %d s: %s", r->rank, late, DEADLINE_S, sentence);
    CHECK_OR_RETURN(, c, ferry_comm_error(r->comm) == status, "rank %d: ferry_comm_error is not the call's error",
                    r->rank);
    begin = check_now();
    ferry_status again = ferry_forward(r->layer, &shard->forward);
    CHECK_OR_RETURN(, c, again == status && check_now() - begin < 0.5 * check_patience(),
                    "rank %d: the next call gave %s after %.1f s", r->rank, ferry_status_name(again),
                    check_now() - begin);
}

/* Forwards and backwards until one fails: the others may well finish the call in which the victim falls, when they
 * need nothing more from it, but not the one after the next. */
static void faulty_calls(const check_job *job, check_rank *r, check_shard *shard) {
    fault_run *run = job->user;
    ferry_status status = FERRY_OK;
    double begin = 0;
    for (int call = 0; call < 4 && status == FERRY_OK; call++) {
        begin = check_now();
        status = call % 2 ? ferry_backward(r->layer, &shard->backward) : ferry_forward(r->layer, &shard->forward);
    }
    if (r->rank != VICTIM)
        judge_survivor(job->c, run, r, shard, status, begin);
    else if (status == FERRY_OK)
        check_fail(job->c, "the victim's calls succeeded");
}

static void faulty_steps(const check_job *job, check_rank *r, check_shard *shard) {
    ferry_context *context = NULL;
    if (!check_rank_context(r, &context)) return;
    shard->forward.context = shard->backward.context = context;
    faulty_calls(job, r, shard);
    double begin = check_now();
    ferry_context_destroy(context);
    check_rank_close(r);
    double seconds = check_now() - begin;
    if (seconds > check_patience()) check_fail(job->c, "rank %d: destroying took %.1f s", r->rank, seconds);
}

static void faulty_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    fault_run *run = job->user;
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap own = *bootstrap;
    check_rank r;
    check_shard shard;
    if (run->fault.processes && !check_meet(job->c, rank, run->job_name, &env, &own)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, NULL, &shard)) {
        if (check_rank_open(&r, job->c, job->batch, job->way, &own)) faulty_steps(job, &r, &shard);
        check_rank_close(&r);
        check_shard_free(&shard);
    }
    ferry_env_bootstrap_destroy(env);
}

/* ---- A run that must succeed, under the same job name ---- */

static void good_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    fault_run *run = job->user;
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap own = *bootstrap;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    if (run->fault.processes && !check_meet(job->c, rank, run->job_name, &env, &own)) return;
    if (check_rank_open(&r, job->c, job->batch, job->way, &own)) {
        if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
            if (check_rank_context(&r, &context) && check_rank_forward(&r, &shard, context, NULL) &&
                check_rank_backward(&r, &shard, context, NULL)) {
                check_shard_gather(&shard, job->result);
            }
            ferry_context_destroy(context);
            check_shard_free(&shard);
        }
        check_rank_close(&r);
    }
    ferry_env_bootstrap_destroy(env);
}

static void run_good(const check_case *c, const check_batch *batch, const check_way *way, fault_run *run) {
    check_result *result = check_result_make(c, batch, way, 0);
    check_job job = {c, batch, way, result, run};
    if (result) check_launch(&job, good_body, 0);
    if (result && !check_failed(c)) check_against_reference(c, batch, way, result);
    check_result_free(result);
}

static const check_problem problem = {
    .seed = 71, .tokens = 240, .hidden = 72, .intermediate = 64, .shared = 16, .experts = 6, .slots = 3};

static void run_fault(const check_case *c) {
    const fault *wanted = c->argument;
    check_way way = {.backend = (ferry_backend)c->options->backend,
                     .ranks = RANKS,
                     .processes = wanted->processes,
                     .ring = 128,
                     .minibatch = 64,
                     .comm_workers = 1,
                     .compute_workers = 1};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    fault_run *run = cli_shared_alloc(sizeof *run);
    CHECK_OR_RETURN(, c, run, "no memory for the fault");
    run->fault = *wanted;
    check_job_name(run->job_name, sizeof run->job_name);
    check_way faulty = way;
    faulty.enter_timeout_s = faulty.progress_timeout_s = wanted->kind == CHECK_DELAY ? DELAYED_DEADLINE_S : DEADLINE_S;
    faulty.tune = watch_victim;
    faulty.tune_user = run;
    check_job job = {c, &batch, &faulty, NULL, run};
    if (wanted->kind == CHECK_DELAY) {
        run_good(c, &batch, &faulty, run);
        if (!check_failed(c) && atomic_load(&run->fired) != 2) check_fail(c, "the phase never came");
    } else {
        check_launch(&job, faulty_body, wanted->kind == CHECK_KILL && wanted->processes);
    }
    if (!check_failed(c)) run_good(c, &batch, &way, run);
    cli_shared_free(run, sizeof *run);
    check_batch_free(&batch);
}

/* ---- What a crashed job leaves ---- */

static void deadly_hooks(void *user, int rank, ferry_comm_config *config) {
    check_hooks *hooks = user;
    config->allocator = check_hooks_allocator(&hooks[rank]);
}

static void crashing_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    fault_run *run = job->user;
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap own;
    check_rank r;
    (void)bootstrap;
    if (!check_meet(job->c, rank, run->job_name, &env, &own)) return;
    check_rank_try_open(&r, job->c, job->batch, job->way, &own);
    raise(SIGKILL);
}

/* All ranks die at once, at every allocation of their creation in turn, whatever they hold then. */
static void crash_everywhere(const check_case *c) {
    enum { LAST = 12 };
    static check_hooks hooks[CHECK_MAX_RANKS];
    check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = RANKS, .processes = 1};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    static fault_run run = {.fault = {.processes = 1}};
    check_job_name(run.job_name, sizeof run.job_name);
    for (int n = 1; n <= LAST && !check_failed(c); n++) {
        check_way crashing = way;
        crashing.tune = deadly_hooks;
        crashing.tune_user = hooks;
        for (int r = 0; r < RANKS; r++) hooks[r] = (check_hooks){.fail_at = n, .deadly = 1};
        check_job job = {c, &batch, &crashing, NULL, &run};
        check_launch(&job, crashing_body, 1);
        if (!check_failed(c)) run_good(c, &batch, &way, &run);
    }
    check_batch_free(&batch);
}

/* The short tier leaves out what differs from another test only in the direction of the call. */
static int in_tier(const check_options *options, const fault *f) {
    if (options->fault || options->long_tier) return 1;
    return !f->backward || (f->kind == CHECK_KILL && f->processes);
}

void check_suite_fault(check_list *list, const check_options *options) {
    for (int i = 0; i < 3 * FERRY_PHASE_COUNT * 4; i++) {
        fault f = {.kind = (check_fault_kind)(CHECK_KILL + i / (4 * FERRY_PHASE_COUNT)),
                   .phase = (ferry_phase)(i / 4 % FERRY_PHASE_COUNT),
                   .backward = i & 1,
                   .processes = i >> 1 & 1};
        if (options->fault && options->fault != (int64_t)f.kind) continue;
        if (options->phase && options->phase != (int64_t)f.phase + 1) continue;
        if (!in_tier(options, &f)) continue;
        check_add(list, "fault", 60, run_fault, check_keep(list, &f, sizeof f), "%sa rank is %s in %s of a %s, %s",
                  f.kind == CHECK_KILL ? "case 39: " : "", kind_names[f.kind], phase_names[f.phase],
                  f.backward ? "backward" : "forward", f.processes ? "processes" : "threads");
    }
    if (options->fault) return;
    check_add(list, "fault", 90, crash_everywhere, NULL, "case 43: what a crashed job leaves does not matter");
}
