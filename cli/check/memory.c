/* SPDX-License-Identifier: Apache-2.0 */
/* Memory is planned and bounded: exact bytes, little beside them, limits that are kept, nothing that grows. */
#include "cli/check/memory.h"
#include "cli/check/hooks.h"
#include "cli/check/usage.h"

#include "cli/launch.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- The allocator's count is the plan ---- */

static void use_hooks(void *user, int rank, ferry_comm_config *config) {
    check_hooks *hooks = user;
    config->allocator = check_hooks_allocator(&hooks[rank]);
}

static int64_t live(const check_hooks *hooks) { return atomic_load(&hooks->live_bytes); }

/* Between two barriers only this rank's own calls change its count. */
static void check_bytes(const check_case *c, int rank, const char *what, int64_t got, int64_t expected) {
    if (got != expected) {
        check_fail(c, "rank %d: %s: %lld bytes allocated, %lld planned", rank, what, (long long)got,
                   (long long)expected);
    }
}

static void check_plans(const check_job *job, int rank, const ferry_comm_config *comm_config,
                        const ferry_layer_config *config, const ferry_plan *plan) {
    ferry_plan ahead = {.size = sizeof ahead};
    int comm_workers = comm_config->comm_workers, compute_workers = comm_config->compute_workers;
    ferry_status status = ferry_layer_plan(config, comm_config->backend, rank, check_way_ranks(job->way), comm_workers,
                                           compute_workers, &ahead);
    if (!check_status(job->c, rank, status, FERRY_OK, "ferry_layer_plan")) return;
    if (memcmp(&ahead, plan, sizeof ahead) != 0) check_fail(job->c, "rank %d: ferry_layer_plan is not the plan", rank);
    if (plan->layer_bytes != plan->symmetric_bytes + plan->ring_bytes + plan->table_bytes) {
        check_fail(job->c, "rank %d: the parts of the plan do not add up", rank);
    }
}

static void plan_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    const check_case *c = job->c;
    check_hooks *hooks = (check_hooks *)job->user + rank;
    check_rank r = {.c = c, .way = job->way, .rank = rank};
    check_shard shard = {0};
    ferry_context *context = NULL;
    ferry_comm_config comm_config;
    ferry_layer_config config;
    ferry_plan plan = {.size = sizeof plan};
    ferry_stats stats = {.size = sizeof stats};
    check_comm_config(job->way, bootstrap, &comm_config);
    check_layer_config(job->batch, job->way, NULL, &config);
    if (!check_status(c, rank, ferry_comm_create(&comm_config, &r.comm), FERRY_OK, "ferry_comm_create")) return;
    int64_t before = live(hooks);
    if (check_status(c, rank, ferry_layer_create(r.comm, &config, &r.layer), FERRY_OK, "ferry_layer_create") &&
        check_status(c, rank, ferry_layer_get_plan(r.layer, &plan), FERRY_OK, "ferry_layer_get_plan") &&
        check_shard_make(c, job->batch, job->way, rank, r.comm, &shard)) {
        check_plans(job, rank, &comm_config, &config, &plan);
        check_bytes(c, rank, "the layer", live(hooks) - before, plan.layer_bytes);
        int64_t layer = live(hooks);
        if (check_rank_context(&r, &context)) {
            check_bytes(c, rank, "a context", live(hooks) - layer, plan.context_bytes);
        }
        int64_t calls = atomic_load(&hooks->calls), held = live(hooks);
        if (context && check_rank_forward(&r, &shard, context, NULL) &&
            check_rank_backward(&r, &shard, context, NULL)) {
            check_shard_gather(&shard, job->result);
        }
        if (atomic_load(&hooks->calls) != calls) check_fail(c, "rank %d: a call allocates", rank);
        ferry_layer_stats(r.layer, &stats);
        check_bytes(c, rank, "current_bytes", stats.current_bytes, held);
        check_bytes(c, rank, "peak_bytes", stats.peak_bytes, atomic_load(&hooks->peak_bytes));
    }
    ferry_context_destroy(context);
    check_shard_free(&shard);
    check_rank_close(&r);
}

static void plan_is_exact(const check_case *c) {
    static check_hooks hooks[CHECK_MAX_RANKS];
    check_recipe recipe = *(const check_recipe *)c->argument;
    recipe.way.backend = (ferry_backend)c->options->backend;
    recipe.way.tune = use_hooks;
    recipe.way.tune_user = hooks;
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&recipe.problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &recipe.way, 0);
    check_job job = {c, &batch, &recipe.way, result, hooks};
    if (result) check_launch(&job, plan_body, 0);
    for (int r = 0; r < CHECK_MAX_RANKS; r++) {
        check_bytes(c, r, "left after everything is destroyed", live(&hooks[r]), 0);
        if (atomic_load(&hooks[r].wrong_sizes)) check_fail(c, "rank %d: blocks are given back with other sizes", r);
    }
    if (result && !check_failed(c)) check_against_reference(c, &batch, &recipe.way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

/* ---- Everything to one expert through a ring of 64 rows ---- */

typedef struct peak_run {
    pthread_barrier_t barrier;
    int64_t tensors; /* resident when only the tensors are there */
    int64_t peak;
    _Atomic int64_t planned;
    int measured;
} peak_run;

static void peak_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    peak_run *run = job->user;
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    int made = check_shard_make(job->c, job->batch, job->way, rank, NULL, &shard);
    pthread_barrier_wait(&run->barrier);
    if (rank == 0) {
        run->measured = check_usage_reset_peak();
        run->tensors = check_usage_now().resident;
    }
    pthread_barrier_wait(&run->barrier);
    if (made && check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) {
        ferry_plan plan = {.size = sizeof plan};
        ferry_layer_get_plan(r.layer, &plan);
        atomic_fetch_add(&run->planned, plan.layer_bytes + plan.context_bytes);
        if (check_rank_context(&r, &context) && check_rank_forward(&r, &shard, context, job->result)) {
            check_rank_backward(&r, &shard, context, job->result);
        }
        ferry_context_destroy(context);
        check_rank_close(&r);
    }
    pthread_barrier_wait(&run->barrier);
    if (rank == 0) run->peak = check_usage_peak();
    pthread_barrier_wait(&run->barrier);
    if (!check_failed(job->c)) check_shard_gather(&shard, job->result);
    check_shard_free(&shard);
}

/* The ranks are threads, so one process holds all of them; small weights, large rows: a row buffer of full size, or a
 * second copy of the slots, would show. */
static void peak_is_planned(const check_case *c) {
    static peak_run run;
    enum { RANKS = 2 };
    const check_problem problem = {.seed = 51,
                                   .tokens = 16000,
                                   .hidden = 640,
                                   .intermediate = 16,
                                   .experts = 4,
                                   .slots = 2,
                                   .route = check_route_one,
                                   .route_number = 1};
    check_way way = {.backend = (ferry_backend)c->options->backend,
                     .ranks = RANKS,
                     .ring = 64,
                     .save = CHECK_RECOMPUTE,
                     .comm_workers = 1,
                     .compute_workers = 1};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, &run};
    pthread_barrier_init(&run.barrier, NULL, RANKS);
    if (result) check_launch(&job, peak_body, 0);
    if (!check_failed(c)) {
        int64_t planned = atomic_load(&run.planned), above = run.peak - run.tensors;
        int64_t bound = planned + planned / 20 + (8 << 20);
        check_note(c, "peak %.1f MiB above the tensors, planned %.1f MiB", (double)above / 1048576,
                   (double)planned / 1048576);
        if (result->rank[0].forward.ring_high_water > 64) check_fail(c, "more than 64 ring rows are in use");
        if (run.measured && check_patience() == 1 && above > bound) {
            check_fail(c, "peak memory above the tensors is %lld bytes, planned %lld, bound %lld", (long long)above,
                       (long long)planned, (long long)bound);
        }
        way.ring = 0;
        way.save = CHECK_SAVED;
        check_result *large = check_run(c, &batch, &way);
        if (large) check_same_bits(c, large, result, "ring of 64 rows");
        check_result_free(large);
    }
    check_result_free(result);
    check_batch_free(&batch);
}

/* ---- Limits ---- */

static void max_bytes_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    const check_case *c = job->c;
    check_hooks *hooks = (check_hooks *)job->user + rank;
    ferry_comm_config comm_config;
    ferry_layer_config config;
    ferry_comm *comm = NULL;
    ferry_layer *layer = NULL;
    ferry_plan plan = {.size = sizeof plan};
    check_comm_config(job->way, bootstrap, &comm_config);
    check_layer_config(job->batch, job->way, NULL, &config);
    ferry_layer_plan(&config, comm_config.backend, rank, check_way_ranks(job->way), comm_config.comm_workers,
                     comm_config.compute_workers, &plan);
    if (!check_status(c, rank, ferry_comm_create(&comm_config, &comm), FERRY_OK, "ferry_comm_create")) return;
    int64_t before = live(hooks), peak = atomic_load(&hooks->peak_bytes);
    config.max_bytes = plan.layer_bytes - 1;
    check_status(c, rank, ferry_layer_create(comm, &config, &layer), FERRY_E_MEMORY, "a layer over max_bytes");
    if (!strstr(ferry_last_error(), " 1 bytes short")) {
        check_fail(c, "rank %d: the sentence does not say what is short: %s", rank, ferry_last_error());
    }
    check_bytes(c, rank, "a refused layer", live(hooks) - before, 0);
    if (atomic_load(&hooks->peak_bytes) - peak >= plan.layer_bytes / 2) {
        check_fail(c, "rank %d: the refused layer was allocated first", rank);
    }
    config.max_bytes = plan.layer_bytes;
    check_status(c, rank, ferry_layer_create(comm, &config, &layer), FERRY_OK, "a layer of exactly max_bytes");
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
}

static void max_bytes(const check_case *c) {
    static check_hooks hooks[CHECK_MAX_RANKS];
    const check_problem problem = {
        .seed = 52, .tokens = 300, .hidden = 64, .intermediate = 64, .experts = 4, .slots = 2};
    const check_way way = {.backend = (ferry_backend)c->options->backend,
                           .ranks = 2,
                           .comm_workers = 1,
                           .compute_workers = 1,
                           .tune = use_hooks,
                           .tune_user = hooks};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_job job = {c, &batch, &way, NULL, hooks};
    check_launch(&job, max_bytes_body, 0);
    check_batch_free(&batch);
}

/* Shared memory that cannot be had, by way of the limit on file sizes: a named error, not a bus error. */
static void no_room_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    ferry_comm_config comm_config;
    ferry_layer_config config;
    r = (check_rank){.c = job->c, .way = job->way, .rank = rank};
    check_comm_config(job->way, bootstrap, &comm_config);
    check_layer_config(job->batch, job->way, NULL, &config);
    if (!check_status(job->c, rank, ferry_comm_create(&comm_config, &r.comm), FERRY_OK, "ferry_comm_create")) return;
    signal(SIGXFSZ, SIG_IGN);
    if (rank == 1) setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 16, 1 << 16});
    ferry_status status = ferry_layer_create(r.comm, &config, &r.layer);
    if (status == FERRY_OK || r.layer) check_fail(job->c, "rank %d: a layer without room for it", rank);
    if (!strstr(ferry_last_error(), "rank 1") && rank != 1) {
        check_fail(job->c, "rank %d: the sentence does not name rank 1: %s", rank, ferry_last_error());
    }
    check_rank_close(&r);
}

static void no_room(const check_case *c) {
    const check_problem problem = {
        .seed = 53, .tokens = 3000, .hidden = 64, .intermediate = 8, .experts = 4, .slots = 2};
    const check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 3, .processes = 1};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_job job = {c, &batch, &way, NULL, NULL};
    check_launch(&job, no_room_body, 0);
    check_batch_free(&batch);
}

/* A context in the caller's memory keeps to it. */
static void own_context_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    enum { GUARD = 256 };
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL;
    void *memory = NULL;
    ferry_plan plan = {.size = sizeof plan};
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    ferry_layer_get_plan(r.layer, &plan);
    size_t bytes = (size_t)plan.context_memory_bytes;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
        if (posix_memalign(&memory, 256, bytes + 2 * GUARD) == 0) {
            memset(memory, 0xa5, bytes + 2 * GUARD);
            unsigned char *inside = (unsigned char *)memory + GUARD;
            ferry_status status = ferry_context_create(r.layer, inside, &context);
            if (check_status(job->c, rank, status, FERRY_OK, "ferry_context_create in the caller's memory") &&
                check_rank_forward(&r, &shard, context, NULL) && check_rank_backward(&r, &shard, context, NULL)) {
                check_shard_gather(&shard, job->result);
            }
            for (size_t i = 0; i < GUARD; i++) {
                if (inside[bytes + i] == 0xa5 && ((unsigned char *)memory)[i] == 0xa5) continue;
                check_fail(job->c, "rank %d: memory beside the context was written", rank);
            }
        }
        ferry_context_destroy(context);
        check_shard_free(&shard);
        free(memory);
    }
    check_rank_close(&r);
}

static void own_context(const check_case *c) {
    const check_problem problem = {
        .seed = 54, .tokens = 100, .hidden = 64, .intermediate = 64, .shared = 24, .experts = 4, .slots = 2};
    const check_way way = {.backend = (ferry_backend)c->options->backend, .ranks = 2, .save = CHECK_HALF};
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_result_make(c, &batch, &way, 0);
    check_job job = {c, &batch, &way, result, NULL};
    if (result) check_launch(&job, own_context_body, 0);
    if (result && !check_failed(c)) check_against_reference(c, &batch, &way, result);
    check_result_free(result);
    check_batch_free(&batch);
}

void check_suite_memory(check_list *list, const check_options *options) {
#define EXACT(...) .comm_workers = 1, .compute_workers = 2, __VA_ARGS__
    static const check_recipe recipes[] = {
        {{.seed = 55, .tokens = 300, .hidden = 72, .intermediate = 40, .experts = 5, .slots = 3, .shared = 16},
         {EXACT(.ranks = 1)}},
        {{.seed = 56, .tokens = 300, .hidden = 72, .intermediate = 40, .experts = 5, .slots = 3},
         {EXACT(.ranks = 3, .ring = 64)}},
        {{.seed = 57,
          .tokens = 300,
          .hidden = 72,
          .intermediate = 40,
          .experts = 4,
          .slots = 2,
          .route = check_route_one,
          .route_number = 3},
         {EXACT(.ranks = 2, .ring = 64, .save = CHECK_RECOMPUTE)}},
        {{.seed = 58, .tokens = 60, .hidden = 33, .intermediate = 17, .experts = 2, .slots = 1},
         {EXACT(.ranks = 4, .save = CHECK_HALF)}},
    };
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        char line[160];
        check_describe(&recipes[i].problem, &recipes[i].way, line, sizeof line);
        check_add(list, "memory", 60, plan_is_exact, &recipes[i], "the allocator counts what is planned: %s", line);
    }
    check_add(list, "memory", 90, peak_is_planned, NULL, "all tokens to one expert through a ring of 64 rows");
    check_add(list, "memory", 60, max_bytes, NULL, "a plan above max_bytes is refused before anything is allocated");
    check_add(list, "memory", 60, no_room, NULL, "no room in shared memory is a named error");
    check_add(list, "memory", 60, own_context, NULL, "a context in the caller's memory");
    check_add_cycles(list, options);
}
