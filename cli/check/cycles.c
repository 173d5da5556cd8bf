/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and destroying many times leaves nothing behind; more than 2^31 elements are no special number. */
#include "cli/check/job.h"
#include "cli/check/memory.h"
#include "cli/check/usage.h"

#include <stdlib.h>
#include <string.h>

/* ---- 1,000 cycles ---- */

typedef struct cycle_kind {
    const char *name;
    int cycles, ranks, processes;
} cycle_kind;

/* One life: communicator, layer, two contexts, a forward and a backward. */
static void one_life(const check_job *job, const ferry_bootstrap *bootstrap, int rank) {
    check_rank r;
    check_shard shard;
    ferry_context *context = NULL, *unused = NULL;
    if (!check_rank_open(&r, job->c, job->batch, job->way, bootstrap)) return;
    if (check_shard_make(job->c, job->batch, job->way, rank, r.comm, &shard)) {
        if (check_rank_context(&r, &context) && check_rank_context(&r, &unused) &&
            check_rank_forward(&r, &shard, context, NULL)) {
            check_rank_backward(&r, &shard, context, NULL);
        }
        ferry_context_destroy(unused);
        ferry_context_destroy(context);
        check_shard_free(&shard);
    }
    check_rank_close(&r);
}

static void compare_usage(const check_case *c, int rank, const check_usage *before, const check_usage *after) {
    CHECK_OR_RETURN(, c, after->files == before->files, "rank %d: open descriptors grew from %lld to %lld", rank,
                    (long long)before->files, (long long)after->files);
    CHECK_OR_RETURN(, c, after->threads <= before->threads, "rank %d: threads grew from %lld to %lld", rank,
                    (long long)before->threads, (long long)after->threads);
    CHECK_OR_RETURN(, c, after->shared_names <= before->shared_names + 8, /* other processes may come and go */
                    "rank %d: names in /dev/shm grew from %lld to %lld", rank, (long long)before->shared_names,
                    (long long)after->shared_names);
    if (check_patience() > 1) return; /* a sanitizer's own memory grows */
    CHECK_OR_RETURN(, c, after->heap - before->heap < 16384, "rank %d: the heap grew from %lld to %lld bytes", rank,
                    (long long)before->heap, (long long)after->heap);
    CHECK_OR_RETURN(, c, after->resident - before->resident < 2 << 20,
                    "rank %d: resident memory grew from %lld to %lld bytes", rank, (long long)before->resident,
                    (long long)after->resident);
}

/* A process lives all lives of its rank, always under one job name. */
static void lives_of_a_process(const check_job *job, const ferry_bootstrap *launched, int rank) {
    const cycle_kind *kind = job->c->argument;
    check_usage before = {0};
    (void)launched;
    for (int i = 0; i < kind->cycles && !check_failed(job->c); i++) {
        ferry_env_bootstrap *env = NULL;
        ferry_bootstrap bootstrap;
        if (i == kind->cycles / 5) before = check_usage_now();
        if (!check_meet(job->c, rank, job->user, &env, &bootstrap)) return;
        one_life(job, &bootstrap, rank);
        ferry_env_bootstrap_destroy(env);
    }
    check_usage after = check_usage_now();
    compare_usage(job->c, rank, &before, &after);
}

static void cycles(const check_case *c) {
    const cycle_kind *kind = c->argument;
    const check_problem problem = {.seed = 61, .tokens = 12, .hidden = 16, .intermediate = 8, .experts = 4, .slots = 2};
    const check_way way = {.backend = (ferry_backend)c->options->backend,
                           .ranks = kind->ranks,
                           .processes = kind->processes,
                           .comm_workers = 1,
                           .compute_workers = 1};
    char name[64];
    check_job_name(name, sizeof name);
    check_batch batch;
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_job job = {c, &batch, &way, NULL, name};
    check_usage before = {0};
    if (kind->processes) {
        check_launch(&job, lives_of_a_process, 0);
    } else {
        for (int i = 0; i < kind->cycles && !check_failed(c); i++) {
            if (i == kind->cycles / 5) before = check_usage_now();
            check_launch(&job, one_life, 0);
        }
        check_usage after = check_usage_now();
        if (!check_failed(c)) compare_usage(c, 0, &before, &after);
    }
    check_batch_free(&batch);
}

/* ---- More than 2^31 elements ---- */

enum { LARGE_TOKENS = 33000, LARGE_HIDDEN = 8192, SAMPLES = 6 };

static const int64_t samples[SAMPLES] = {0, 1, 4095, 16384, 32767, LARGE_TOKENS - 1};

/* Only sampled tokens have an output gradient, so the reference needs to see only them. */
static void edit_samples(check_batch *b) {
    size_t row = LARGE_HIDDEN * sizeof *b->dout;
    int next = 0;
    for (int64_t t = 0; t < LARGE_TOKENS; t++) {
        if (next < SAMPLES && t == samples[next])
            next++;
        else
            memset(b->dout + t * LARGE_HIDDEN, 0, row);
    }
}

/* The sampled tokens as a batch of their own, with the weights of the large one; its memory stays there. */
static int pick_samples(const check_batch *all, check_batch *few) {
    int64_t k = all->problem.slots, h = LARGE_HIDDEN;
    *few = *all;
    few->problem.tokens = SAMPLES;
    few->x = malloc(SAMPLES * (size_t)h * sizeof *few->x);
    few->dout = malloc(SAMPLES * (size_t)h * sizeof *few->dout);
    few->ids = malloc(SAMPLES * (size_t)k * sizeof *few->ids);
    few->weights = malloc(SAMPLES * (size_t)k * sizeof *few->weights);
    if (!few->x || !few->dout || !few->ids || !few->weights) return 0;
    for (int i = 0; i < SAMPLES; i++) {
        memcpy(few->x + i * h, all->x + samples[i] * h, (size_t)h * sizeof *few->x);
        memcpy(few->dout + i * h, all->dout + samples[i] * h, (size_t)h * sizeof *few->dout);
        memcpy(few->ids + i * k, all->ids + samples[i] * k, (size_t)k * sizeof *few->ids);
        memcpy(few->weights + i * k, all->weights + samples[i] * k, (size_t)k * sizeof *few->weights);
    }
    return 1;
}

/* The large run's tensors with only the sampled tokens' rows. */
static void pick_rows(const check_result *all, check_result *few) {
    for (int id = CHECK_OUT; id < CHECK_TENSOR_COUNT; id++) {
        const check_tensor *from = &all->tensor[id];
        check_tensor *to = &few->tensor[id];
        size_t row = (size_t)from->dims[2] * check_dtype_bytes(from->dtype);
        if (id > CHECK_DWEIGHTS) {
            memcpy(to->data, from->data, (size_t)from->count * check_dtype_bytes(from->dtype));
            continue;
        }
        for (size_t i = 0; i < SAMPLES; i++) memcpy(to->data + i * row, from->data + (size_t)samples[i] * row, row);
    }
}

static void large_tensors(const check_case *c) {
    const check_problem problem = {.seed = 62,
                                   .tokens = LARGE_TOKENS,
                                   .hidden = LARGE_HIDDEN,
                                   .intermediate = 8,
                                   .experts = 4,
                                   .slots = 8,
                                   .edit = edit_samples};
    const check_way way = {
        .backend = (ferry_backend)c->options->backend, .ranks = 1, .ring = 4096, .save = CHECK_RECOMPUTE};
    const int64_t needed = INT64_C(15) << 30;
    if (check_usage_available() < needed) {
        check_skip(c, "needs 15 GiB of memory, %.1f GiB are available", (double)check_usage_available() / (1 << 30));
        return;
    }
    check_batch all, few = {0};
    CHECK_OR_RETURN(, c, check_batch_make(&problem, &all), "no memory for the batch");
    check_result *result = check_run(c, &all, &way);
    if (result && pick_samples(&all, &few)) {
        check_result *picked = check_result_make(c, &few, &way, 0);
        if (picked) {
            pick_rows(result, picked);
            check_against_reference(c, &few, &way, picked);
        }
        check_result_free(picked);
    }
    free(few.x);
    free(few.dout);
    free(few.ids);
    free(few.weights);
    check_result_free(result);
    check_batch_free(&all);
}

void check_add_cycles(check_list *list, const check_options *options) {
    static const cycle_kind kinds[] = {
        {"1 rank", 1000, 1, 0}, {"2 ranks as threads", 1000, 2, 0}, {"2 ranks as processes", 1000, 2, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_add(list, "memory", 120, cycles, &kinds[i], "case 37: %d lives leave nothing behind, %s", kinds[i].cycles,
                  kinds[i].name);
    }
    if (options->long_tier) {
        check_add(list, "memory", 900, large_tensors, NULL, "case 17: rows x H beyond 2^31 elements");
    }
}
