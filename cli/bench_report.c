/* SPDX-License-Identifier: Apache-2.0 */
/* What `ferry bench` says: a summary for people, or one JSON object. */
#include "cli/bench.h"
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/spread.h"
#include "cli/counters.h"

#include <inttypes.h>
#include <stdio.h>

/* Forward, backward or both. */
typedef struct timing {
    spread seconds, rate, share; /* rate: operations per second; share: of the product kernel beside it */
    double flop;
} timing;

typedef struct summary {
    ferry_stats forward, backward; /* over all ranks */
    int64_t planned_bytes, peak_bytes;
    spread product;
    timing time_forward, time_backward, time_both;
} summary;

static double larger(double a, double b) { return a > b ? a : b; }

/* All ranks' products at once, and the slowest rank's times. */
static bench_sample sample_of(const bench_job *job, int64_t repetition) {
    bench_sample all = {.forward_s = 0};
    for (int r = 0; r < job->options->ranks; r++) {
        const bench_sample *one = &job->results[r].sample[repetition];
        for (int turn = 0; turn < 3; turn++) all.product[turn] += one->product[turn];
        all.forward_s = larger(all.forward_s, one->forward_s);
        all.backward_s = larger(all.backward_s, one->backward_s);
    }
    return all;
}

/* The product kernel's best rate around the calls that are asked about: a turn that was disturbed does not count. */
static double product_around(const bench_sample *s, int forward, int backward) {
    double rate = s->product[1];
    if (forward) rate = larger(rate, s->product[0]);
    if (backward) rate = larger(rate, s->product[2]);
    return rate;
}

static timing timing_of(const bench_job *job, int forward, int backward, double flop) {
    double seconds[BENCH_MAX_REPEAT], rate[BENCH_MAX_REPEAT], share[BENCH_MAX_REPEAT];
    int64_t count = job->options->repeat;
    for (int64_t i = 0; i < count; i++) {
        bench_sample s = sample_of(job, i);
        seconds[i] = forward * s.forward_s + backward * s.backward_s;
        rate[i] = flop / seconds[i];
        share[i] = rate[i] / product_around(&s, forward, backward);
    }
    return (timing){spread_of(seconds, count), spread_of(rate, count), spread_of(share, count), flop};
}

static summary sum_up(const bench_job *job) {
    summary s = {.planned_bytes = 0};
    double product[2 * BENCH_MAX_REPEAT];
    int64_t products = 0;
    for (int r = 0; r < job->options->ranks; r++) {
        const bench_result *result = &job->results[r];
        counters_add(&s.forward, &result->forward);
        counters_add(&s.backward, &result->backward);
        s.planned_bytes += result->plan.layer_bytes + result->plan.context_bytes;
        s.peak_bytes += result->backward.peak_bytes;
    }
    for (int64_t i = 0; i < job->options->repeat; i++) {
        bench_sample sample = sample_of(job, i);
        product[products++] = sample.product[1];
        product[products++] = sample.product[2];
    }
    s.product = spread_of(product, products);
    s.time_forward = timing_of(job, 1, 0, (double)s.forward.flop);
    s.time_backward = timing_of(job, 0, 1, (double)s.backward.flop);
    s.time_both = timing_of(job, 1, 1, (double)(s.forward.flop + s.backward.flop));
    return s;
}

/* ---- JSON ---- */

static json_t *timing_json(const timing *t, const ferry_stats *stats) {
    json_t *object = json_pack("{s:o,s:o,s:o}", "ms", spread_json(&t->seconds, 1e3), "gflop_per_s",
                               spread_json(&t->rate, 1e-9), "product_share", spread_json(&t->share, 1));
    if (object && stats) json_object_update_new(object, counters_json(stats));
    return object;
}

static json_t *shape_json(const bench_job *job) {
    const layer_shape *s = &job->shape;
    return json_pack("{s:I,s:I,s:I,s:I,s:I}", "tokens", (json_int_t)job->routing.tokens, "slots", (json_int_t)s->slots,
                     "hidden", (json_int_t)s->hidden, "intermediate", (json_int_t)s->intermediate, "experts",
                     (json_int_t)s->experts);
}

static json_t *knobs_json(const bench_job *job) {
    const bench_options *o = job->options;
    const ferry_plan *plan = &job->results[0].plan;
    return json_pack("{s:I,s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:s,s:f,s:I,s:I}", "ranks", (json_int_t)o->ranks, "mode",
                     o->processes ? "processes" : "threads", "backend", "cpu", "isa",
                     machine_isa_name((ferry_isa)o->isa), "comm_workers", job->comm_workers, "compute_workers",
                     job->compute_workers, "minibatch", (json_int_t)plan->minibatch_rows, "ring",
                     (json_int_t)plan->ring_rows, "context", (json_int_t)plan->context_rows, "grad_dtype",
                     o->grad_bf16 ? "bf16" : "f32", "skew", o->skew, "seed", (json_int_t)o->seed, "repeat",
                     (json_int_t)o->repeat);
}

static int report_json(const bench_job *job, const summary *s) {
    return cli_print_json(
        json_pack("{s:s,s:f,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:I}", "title", job->options->shape, "scale", job->scale,
                  "shape", shape_json(job), "knobs", knobs_json(job), "product_gflop_per_s",
                  spread_json(&s->product, 1e-9), "forward", timing_json(&s->time_forward, &s->forward), "backward",
                  timing_json(&s->time_backward, &s->backward), "forward_backward", timing_json(&s->time_both, NULL),
                  "planned_bytes", (json_int_t)s->planned_bytes, "peak_bytes", (json_int_t)s->peak_bytes));
}

/* ---- Text ---- */

static void print_timing(const char *name, const timing *t) {
    printf("%-9s %.2f ms (%.2f to %.2f), %.1f GFLOP/s, %.1f %% of the product kernel (%.1f to %.1f)\n", name,
           1e3 * t->seconds.median, 1e3 * t->seconds.least, 1e3 * t->seconds.most, 1e-9 * t->rate.median,
           100 * t->share.median, 100 * t->share.least, 100 * t->share.most);
}

static void print_bytes(const char *name, const ferry_stats *s) {
    const double mb = 1e-6;
    printf("%-9s MB: schedule %.2f, pull %.2f (%.2f from other ranks), push %.2f (%.2f to other ranks), sum %.2f\n",
           name, mb * (double)s->bytes_schedule, mb * (double)s->bytes_pull, mb * (double)s->bytes_pull_remote,
           mb * (double)s->bytes_push, mb * (double)s->bytes_push_remote, mb * (double)s->bytes_sum);
}

static int report_text(const bench_job *job, const summary *s) {
    const bench_options *o = job->options;
    const ferry_plan *plan = &job->results[0].plan;
    char processor[128];
    machine_processor_name(processor, sizeof processor);
    int64_t threads = o->ranks * job->compute_workers, macrobatches = s->forward.macrobatches;
    printf("layer     %s", o->shape);
    if (job->scale != 1)
        printf(" with H, I%s divided by %g, H and I rounded to multiples of %d, at least %d", o->routing ? "" : ", T",
               job->scale, SHAPE_SCALE_UNIT, SHAPE_SCALE_UNIT);
    printf(": %" PRId64 " tokens x %" PRId64 " slots", job->routing.tokens, job->shape.slots);
    if (o->routing) printf(" as in %s", o->routing);
    printf(", H %" PRId64 ", I %" PRId64 ", %" PRId64 " experts\n", job->shape.hidden, job->shape.intermediate,
           job->shape.experts);
    printf("knobs     %" PRId64 " rank%s (%s), %d + %d workers each; minibatch %" PRId64 ", ring %" PRId64
           ", context %" PRId64 " rows; %" PRId64 " macrobatch%s\n",
           o->ranks, o->ranks == 1 ? "" : "s", o->processes ? "processes" : "threads", job->comm_workers,
           job->compute_workers, plan->minibatch_rows, plan->ring_rows, plan->context_rows, macrobatches,
           macrobatches == 1 ? "" : "es");
    printf("product   %.1f GFLOP/s (%.1f to %.1f) by %" PRId64 " thread%s, %s; %s, %d processor%s\n",
           1e-9 * s->product.median, 1e-9 * s->product.least, 1e-9 * s->product.most, threads, threads == 1 ? "" : "s",
           machine_isa_name((ferry_isa)o->isa), processor, machine_processors(), machine_processors() == 1 ? "" : "s");
    print_timing("forward", &s->time_forward);
    print_timing("backward", &s->time_backward);
    print_timing("fwd+bwd", &s->time_both);
    print_bytes("forward", &s->forward);
    print_bytes("backward", &s->backward);
    printf("memory    planned %.2f MB, peak %.2f MB over all ranks\n", 1e-6 * (double)s->planned_bytes,
           1e-6 * (double)s->peak_bytes);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int bench_report(const bench_job *job) {
    summary s = sum_up(job);
    return job->options->json ? report_json(job, &s) : report_text(job, &s);
}
