/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ferry bench` says about GPUs. The floor of a repetition is the largest of: the busiest rank's operations at the
 * yardstick R* of that repetition, its bytes over links, its bytes of memory at the rate of copies. R* of a GPU is the
 * better of the library's product and bench_plain beside the call; of several GPUs the slowest counts, as it does for
 * the layer. The score is floor / measured.
 */
#include "cli/bench.h"
#include "cli/counters.h"
#include "cli/message.h"
#include "cli/plan_floor.h"
#include "cli/spread.h"
#include "rules/place.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The forward, the backward in a step, or both. */
typedef struct timing {
    spread seconds, rate, score; /* rate: operations per second of the busiest rank */
    plan_work work;
    plan_floor floor; /* at the median R* */
} timing;

typedef struct summary {
    ferry_stats forward, backward; /* over all ranks */
    int64_t planned_bytes, peak_bytes;
    spread library, own, r_star;
    double copy_per_s;
    machine machine;
    int has_backward;
    timing time_forward, time_both;
    spread backward_s;
} summary;

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

/* Of the slowest rank, each value by itself. */
static bench_sample slowest(const bench_job *job, int64_t repetition) {
    bench_sample all = job->results[0].sample[repetition];
    for (int r = 1; r < job->options->ranks; r++) {
        const bench_sample *one = &job->results[r].sample[repetition];
        for (int turn = 0; turn < 3; turn++) all.product[turn] = smaller(all.product[turn], one->product[turn]);
        all.library = smaller(all.library, one->library);
        all.own = smaller(all.own, one->own);
        all.forward_s = larger(all.forward_s, one->forward_s);
        all.backward_s = larger(all.backward_s, one->backward_s);
        all.both_s = larger(all.both_s, one->both_s);
    }
    return all;
}

/* The better of the products before and after the call. */
static double r_star_of(const bench_sample *s, int both) { return larger(s->product[both], s->product[both + 1]); }

static timing timing_of(const bench_job *job, const summary *sum, const plan_work *work, int both) {
    double seconds[BENCH_MAX_REPEAT], rate[BENCH_MAX_REPEAT], score[BENCH_MAX_REPEAT];
    int64_t count = job->options->repeat;
    machine m = sum->machine;
    for (int64_t i = 0; i < count; i++) {
        bench_sample s = slowest(job, i);
        m.product.per_s = r_star_of(&s, both);
        seconds[i] = both ? s.both_s : s.forward_s;
        rate[i] = work->flop / seconds[i];
        score[i] = plan_floor_of(work, &m).floor / seconds[i];
    }
    m.product.per_s = sum->r_star.median;
    return (timing){spread_of(seconds, count), spread_of(rate, count), spread_of(score, count), *work,
                    plan_floor_of(work, &m)};
}

/* Rows, links and memory of every rank, from the ids alone. */
static int count_work(const bench_job *job, plan_work *forward, plan_work *both) {
    int ranks = (int)job->options->ranks;
    int64_t first[KNOB_MAX_RANKS + 1];
    for (int r = 0; r <= ranks; r++) first[r] = fy_split_first(job->routing.tokens, ranks, r);
    plan_input input = {.config = &job->config,
                        .nranks = ranks,
                        .comm_workers = 1,
                        .compute_workers = 1,
                        .first_token = first,
                        .ids = job->routing.ids,
                        .ids_dtype = FERRY_I32,
                        .has_backward = 1};
    plan_counts counts;
    ferry_status status = plan_count(&input, &counts);
    if (status) return cli_fail_status(status, "counting the layer's work");
    *forward = plan_work_of(&counts, &job->config, 0, 0);
    *both = plan_work_of(&counts, &job->config, 1, job->options->grad_bf16 ? 2 : 4);
    plan_counts_free(&counts);
    return CLI_OK;
}

static int sum_up(const bench_job *job, summary *s) {
    double library[BENCH_MAX_REPEAT], own[BENCH_MAX_REPEAT], r_star[BENCH_MAX_REPEAT], backward[BENCH_MAX_REPEAT];
    int64_t count = job->options->repeat;
    plan_work forward, both;
    *s = (summary){.has_backward = !job->results[0].no_backward[0], .copy_per_s = job->results[0].copy_per_s};
    int code = count_work(job, &forward, &both);
    if (!code) code = machine_find("h200", (int)job->options->ranks, &s->machine); /* for the rate of links alone */
    if (code) return code;
    for (int r = 0; r < job->options->ranks; r++) {
        const bench_result *result = &job->results[r];
        counters_add(&s->forward, &result->forward);
        counters_add(&s->backward, &result->backward);
        s->planned_bytes += result->plan.layer_bytes + (s->has_backward ? result->plan.context_bytes : 0);
        s->peak_bytes += s->has_backward ? result->backward.peak_bytes : result->forward.peak_bytes;
        s->copy_per_s = smaller(s->copy_per_s, result->copy_per_s);
    }
    for (int64_t i = 0; i < count; i++) {
        bench_sample sample = slowest(job, i);
        library[i] = sample.library;
        own[i] = sample.own;
        r_star[i] = r_star_of(&sample, 0);
        backward[i] = sample.backward_s;
    }
    s->library = spread_of(library, count);
    s->own = spread_of(own, count);
    s->r_star = spread_of(r_star, count);
    s->backward_s = spread_of(backward, count);
    s->machine.copy.per_s = s->copy_per_s;
    s->time_forward = timing_of(job, s, &forward, 0);
    if (s->has_backward) s->time_both = timing_of(job, s, &both, 1);
    return CLI_OK;
}

/* ---- JSON ---- */

static json_t *timing_json(const timing *t) {
    return json_pack("{s:o,s:o,s:o,s:{s:f,s:f,s:f,s:f}}", "ms", spread_json(&t->seconds, 1e3), "tflop_per_s",
                     spread_json(&t->rate, 1e-12), "score", spread_json(&t->score, 1), "floor_ms", "flop",
                     1e3 * t->floor.flop, "link", 1e3 * t->floor.link, "memory", 1e3 * t->floor.memory, "floor",
                     1e3 * t->floor.floor);
}

static int report_json(const bench_job *job, const summary *s) {
    const bench_options *o = job->options;
    const layer_shape *shape = &job->shape;
    const ferry_plan *plan = &job->results[0].plan;
    json_t *object = json_pack(
        "{s:s,s:{s:I,s:I,s:I,s:I,s:I},s:{s:I,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:I,s:I},s:{s:i,s:s}}", "title",
        o->shape, "shape", "tokens", (json_int_t)job->routing.tokens, "slots", (json_int_t)shape->slots, "hidden",
        (json_int_t)shape->hidden, "intermediate", (json_int_t)shape->intermediate, "experts",
        (json_int_t)shape->experts, "knobs", "ranks", (json_int_t)o->ranks, "mode",
        o->processes ? "processes" : "threads", "backend", "cuda", "comm_workers", (json_int_t)job->comm_workers,
        "compute_workers", (json_int_t)job->compute_workers, "minibatch", (json_int_t)plan->minibatch_rows, "ring",
        (json_int_t)plan->ring_rows, "context", (json_int_t)plan->context_rows, "grad_dtype",
        o->grad_bf16 ? "bf16" : "f32", "skew", o->skew, "seed", (json_int_t)o->seed, "repeat", (json_int_t)o->repeat,
        "gpus", "count", job->devices.count, "name", job->devices.name);
    json_t *yard = json_pack("{s:o,s:o,s:o,s:f,s:f}", "cublas_8192_tflop_per_s", spread_json(&s->library, 1e-12),
                             "plain_16384x4096x7168_tflop_per_s", spread_json(&s->own, 1e-12), "r_star_tflop_per_s",
                             spread_json(&s->r_star, 1e-12), "copy_gb_per_s", 1e-9 * s->copy_per_s, "link_gb_per_s",
                             1e-9 * s->machine.link.per_s);
    json_t *forward = timing_json(&s->time_forward);
    json_object_update_new(forward, counters_json(&s->forward));
    json_object_set_new(object, "yardsticks", yard);
    json_object_set_new(object, "forward", forward);
    if (s->has_backward) {
        json_t *backward = json_pack("{s:o}", "ms", spread_json(&s->backward_s, 1e3));
        json_object_update_new(backward, counters_json(&s->backward));
        json_object_set_new(object, "backward", backward);
        json_object_set_new(object, "forward_backward", timing_json(&s->time_both));
    } else {
        json_object_set_new(object, "no_backward", json_string(job->results[0].no_backward));
    }
    json_object_set_new(object, "planned_bytes", json_integer(s->planned_bytes));
    json_object_set_new(object, "peak_bytes", json_integer(s->peak_bytes));
    return cli_print_json(object);
}

/* ---- Text ---- */

static void print_timing(const char *name, const timing *t) {
    printf("%-9s %.3f ms (%.3f to %.3f), %.0f TFLOP/s on the busiest rank; floor %.3f ms (flop %.3f, link %.3f, memory "
           "%.3f), score %.3f (%.3f to %.3f)\n",
           name, 1e3 * t->seconds.median, 1e3 * t->seconds.least, 1e3 * t->seconds.most, 1e-12 * t->rate.median,
           1e3 * t->floor.floor, 1e3 * t->floor.flop, 1e3 * t->floor.link, 1e3 * t->floor.memory, t->score.median,
           t->score.least, t->score.most);
}

static int report_text(const bench_job *job, const summary *s) {
    const bench_options *o = job->options;
    const ferry_plan *plan = &job->results[0].plan;
    printf("layer     %s: %" PRId64 " tokens x %" PRId64 " slots, H %" PRId64 ", I %" PRId64 ", %" PRId64 " experts, ",
           o->shape, job->routing.tokens, job->shape.slots, job->shape.hidden, job->shape.intermediate,
           job->shape.experts);
    if (o->routing)
        printf("tokens and slots as in %s\n", o->routing);
    else
        printf("skew %g\n", o->skew);
    printf("knobs     %" PRId64 " rank%s (%s) on %d x %s; minibatch %" PRId64 ", ring %" PRId64 " rows; %" PRId64
           " macrobatch%s\n",
           o->ranks, o->ranks == 1 ? "" : "s", o->processes ? "processes" : "threads", job->devices.count,
           job->devices.name, plan->minibatch_rows, plan->ring_rows, s->forward.macrobatches,
           s->forward.macrobatches == 1 ? "" : "es");
    printf("product   R* %.1f TFLOP/s (%.1f to %.1f): cuBLAS 8192^3 %.1f, plain 16384x4096x7168 %.1f; copy %.0f GB/s\n",
           1e-12 * s->r_star.median, 1e-12 * s->r_star.least, 1e-12 * s->r_star.most, 1e-12 * s->library.median,
           1e-12 * s->own.median, 1e-9 * s->copy_per_s);
    print_timing("forward", &s->time_forward);
    if (s->has_backward) {
        printf("backward  %.3f ms (%.3f to %.3f), of fwd+bwd\n", 1e3 * s->backward_s.median, 1e3 * s->backward_s.least,
               1e3 * s->backward_s.most);
        print_timing("fwd+bwd", &s->time_both);
    } else {
        printf("backward  not measured: %s\n", job->results[0].no_backward);
    }
    printf("memory    planned %.2f MB, peak %.2f MB over all ranks\n", 1e-6 * (double)s->planned_bytes,
           1e-6 * (double)s->peak_bytes);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int bench_cuda_report(const bench_job *job) {
    summary *s = malloc(sizeof *s);
    if (!s) return cli_fail("no memory for the report");
    int code = sum_up(job, s);
    if (!code) code = job->options->json ? report_json(job, s) : report_text(job, s);
    free(s);
    return code;
}
