/* SPDX-License-Identifier: Apache-2.0 */
/* What `ferry run` says about a run: a summary for people, or one JSON object. */
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/counters.h"
#include "cli/run.h"

#include <inttypes.h>
#include <stdio.h>

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static const char *isa_name(const run_options *o) {
    return o->backend == FERRY_CUDA ? "cuda" : machine_isa_name((ferry_isa)o->isa);
}

static json_t *knobs_json(const run_job *job) {
    const run_options *o = job->options;
    const ferry_plan *plan = &job->results[0].plan;
    return json_pack("{s:i,s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:s,s:f}", "ranks", job->problem->nranks, "mode",
                     o->processes ? "processes" : "threads", "backend", o->backend == FERRY_CUDA ? "cuda" : "cpu",
                     "isa", isa_name(o), "comm_workers", job->comm_workers, "compute_workers", job->compute_workers,
                     "minibatch", (json_int_t)plan->minibatch_rows, "ring", (json_int_t)plan->ring_rows, "context",
                     (json_int_t)plan->context_rows, "grad_dtype", o->grad_bf16 ? "bf16" : "f32", "swiglu_limit",
                     o->swiglu_limit);
}

static json_t *shape_json(const run_problem *p) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "tokens", (json_int_t)p->tokens, "slots", (json_int_t)p->slots,
                     "hidden", (json_int_t)p->hidden, "intermediate", (json_int_t)p->intermediate, "shared",
                     (json_int_t)p->shared, "experts", (json_int_t)p->experts);
}

/* Of the layer and, where there is one, its context. */
static int64_t planned_bytes(const run_job *job, const run_result *result) {
    return result->plan.layer_bytes + (job->problem->dout ? result->plan.context_bytes : 0);
}

static int64_t peak_bytes(const run_result *result) {
    return larger(result->forward.peak_bytes, result->backward.peak_bytes);
}

static json_t *rank_json(const run_job *job, int rank) {
    const run_result *result = &job->results[rank];
    const int64_t *first = job->problem->first_token;
    json_t *object = json_pack(
        "{s:i,s:I,s:I,s:I,s:o,s:f,s:o}", "rank", rank, "tokens", (json_int_t)(first[rank + 1] - first[rank]),
        "planned_bytes", (json_int_t)planned_bytes(job, result), "peak_bytes", (json_int_t)peak_bytes(result), "plan",
        planned_json(&result->plan), "forward_seconds", result->forward_s, "forward", counters_json(&result->forward));
    if (object && job->problem->dout) {
        json_object_set_new(object, "backward_seconds", json_real(result->backward_s));
        json_object_set_new(object, "backward", counters_json(&result->backward));
    }
    return object;
}

static json_t *bad_ids_json(const ferry_report *report) {
    if (report->status == FERRY_OK) return json_pack("{s:i}", "count", 0);
    return json_pack("{s:I,s:i,s:I,s:I,s:I}", "count", (json_int_t)report->count, "rank", report->rank, "token",
                     (json_int_t)report->token, "slot", (json_int_t)report->slot, "id", (json_int_t)report->id);
}

/* Over all ranks: the forward, the backward, and both. */
typedef struct totals {
    ferry_stats forward, backward, both;
    int64_t planned_bytes, peak_bytes;
    double forward_s, backward_s; /* of the slowest rank */
} totals;

static totals sum_up(const run_job *job) {
    totals t = {.planned_bytes = 0};
    for (int r = 0; r < job->problem->nranks; r++) {
        const run_result *result = &job->results[r];
        counters_add(&t.forward, &result->forward);
        counters_add(&t.backward, &result->backward);
        t.planned_bytes += planned_bytes(job, result);
        t.peak_bytes += peak_bytes(result);
        if (result->forward_s > t.forward_s) t.forward_s = result->forward_s;
        if (result->backward_s > t.backward_s) t.backward_s = result->backward_s;
    }
    counters_add(&t.both, &t.forward);
    counters_add(&t.both, &t.backward);
    return t;
}

static int report_json(const run_job *job, const totals *t) {
    json_t *object = json_pack("{s:o,s:o,s:o}", "knobs", knobs_json(job), "shape", shape_json(job->problem), "bad_ids",
                               bad_ids_json(&job->results[0].report));
    json_t *ranks = json_array();
    for (int r = 0; r < job->problem->nranks; r++) json_array_append_new(ranks, rank_json(job, r));
    int bad = json_object_update_new(object, counters_json(&t->both));
    bad |= json_object_set_new(object, "planned_bytes", json_integer(t->planned_bytes));
    bad |= json_object_set_new(object, "peak_bytes", json_integer(t->peak_bytes));
    bad |= json_object_set_new(object, "forward", counters_json(&t->forward));
    if (job->problem->dout) bad |= json_object_set_new(object, "backward", counters_json(&t->backward));
    bad |= json_object_set_new(object, "ranks", ranks);
    if (!bad) return cli_print_json(object);
    json_decref(object);
    return cli_print_json(NULL);
}

static void print_call(const char *name, const ferry_stats *s, double seconds) {
    const double mb = 1e-6;
    printf("%-9s %.3f ms; %" PRId64 " rows, %" PRId64 " pulls, %" PRId64 " macrobatch%s, ring high-water %" PRId64
           " rows, %" PRId64 " rows recomputed\n",
           name, 1e3 * seconds, s->rows, s->pulls, s->macrobatches, s->macrobatches == 1 ? "" : "es",
           s->ring_high_water, s->recomputed_rows);
    printf("%-9s MB: schedule %.3g, pull %.3g (%.3g from other ranks), push %.3g (%.3g to other ranks), sum %.3g\n", "",
           mb * (double)s->bytes_schedule, mb * (double)s->bytes_pull, mb * (double)s->bytes_pull_remote,
           mb * (double)s->bytes_push, mb * (double)s->bytes_push_remote, mb * (double)s->bytes_sum);
}

static int report_text(const run_job *job, const totals *t) {
    const run_problem *p = job->problem;
    const ferry_plan *plan = &job->results[0].plan;
    printf("layer     %" PRId64 " tokens x %" PRId64 " slots, H %" PRId64 ", I %" PRId64 ", %" PRId64
           " experts, shared expert %" PRId64 "\n",
           p->tokens, p->slots, p->hidden, p->intermediate, p->experts, p->shared);
    printf("knobs     %d rank%s (%s), %d + %d workers each, %s; minibatch %" PRId64 ", ring %" PRId64
           ", context %" PRId64 " rows\n",
           p->nranks, p->nranks == 1 ? "" : "s", job->options->processes ? "processes" : "threads", job->comm_workers,
           job->compute_workers, isa_name(job->options), plan->minibatch_rows, plan->ring_rows, plan->context_rows);
    print_call("forward", &t->forward, t->forward_s);
    if (p->dout) print_call("backward", &t->backward, t->backward_s);
    printf("memory    planned %.2f MB, peak %.2f MB over all ranks\n", 1e-6 * (double)t->planned_bytes,
           1e-6 * (double)t->peak_bytes);
    printf("wrote     %s\n", job->options->out);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int run_report(const run_job *job) {
    totals t = sum_up(job);
    return job->options->json ? report_json(job, &t) : report_text(job, &t);
}
