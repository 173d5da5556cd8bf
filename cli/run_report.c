/* SPDX-License-Identifier: Apache-2.0 */
/* What `ferry run` says about a run: a summary for people, or one JSON object. */
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/run.h"

#include <inttypes.h>
#include <stdio.h>

/* Counters that add up over ranks, by name: all of ferry_stats but those where only the largest means something. */
#define SUMMED_STATS(X)                                                                                                \
    X(rows)                                                                                                            \
    X(pulls)                                                                                                           \
    X(recomputed_rows) X(steps) X(flop) X(bytes_schedule) X(bytes_pull) X(bytes_pull_remote) X(bytes_push)             \
        X(bytes_push_remote) X(bytes_sum)
#define LARGEST_STATS(X) X(macrobatches) X(ring_high_water)

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void add_stats(ferry_stats *total, const ferry_stats *one) {
#define ADD(name) total->name += one->name;
    SUMMED_STATS(ADD)
#undef ADD
#define TAKE_LARGER(name) total->name = larger(total->name, one->name);
    LARGEST_STATS(TAKE_LARGER)
#undef TAKE_LARGER
}

static json_t *stats_json(const ferry_stats *s) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:{s:I,s:I,s:I,s:I,s:I,s:I}}", "macrobatches",
                     (json_int_t)s->macrobatches, "ring_high_water", (json_int_t)s->ring_high_water, "pulls",
                     (json_int_t)s->pulls, "recomputed_rows", (json_int_t)s->recomputed_rows, "rows",
                     (json_int_t)s->rows, "steps", (json_int_t)s->steps, "flop", (json_int_t)s->flop, "bytes",
                     "schedule", (json_int_t)s->bytes_schedule, "pull", (json_int_t)s->bytes_pull, "pull_remote",
                     (json_int_t)s->bytes_pull_remote, "push", (json_int_t)s->bytes_push, "push_remote",
                     (json_int_t)s->bytes_push_remote, "sum", (json_int_t)s->bytes_sum);
}

static json_t *plan_json(const ferry_plan *p) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "local_experts", (json_int_t)p->local_experts,
                     "minibatch_rows", (json_int_t)p->minibatch_rows, "ring_rows", (json_int_t)p->ring_rows,
                     "context_rows", (json_int_t)p->context_rows, "max_rows", (json_int_t)p->max_rows,
                     "symmetric_bytes", (json_int_t)p->symmetric_bytes, "ring_bytes", (json_int_t)p->ring_bytes,
                     "table_bytes", (json_int_t)p->table_bytes, "layer_bytes", (json_int_t)p->layer_bytes,
                     "context_bytes", (json_int_t)p->context_bytes);
}

static json_t *knobs_json(const run_job *job) {
    const run_options *o = job->options;
    const ferry_plan *plan = &job->results[0].plan;
    return json_pack("{s:i,s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:s,s:f}", "ranks", job->problem->nranks, "mode",
                     o->processes ? "processes" : "threads", "backend", "cpu", "isa",
                     machine_isa_name((ferry_isa)o->isa), "comm_workers", job->comm_workers, "compute_workers",
                     job->compute_workers, "minibatch", (json_int_t)plan->minibatch_rows, "ring",
                     (json_int_t)plan->ring_rows, "context", (json_int_t)plan->context_rows, "grad_dtype",
                     o->grad_bf16 ? "bf16" : "f32", "swiglu_limit", o->swiglu_limit);
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
        plan_json(&result->plan), "forward_seconds", result->forward_s, "forward", stats_json(&result->forward));
    if (object && job->problem->dout) {
        json_object_set_new(object, "backward_seconds", json_real(result->backward_s));
        json_object_set_new(object, "backward", stats_json(&result->backward));
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
        add_stats(&t.forward, &result->forward);
        add_stats(&t.backward, &result->backward);
        t.planned_bytes += planned_bytes(job, result);
        t.peak_bytes += peak_bytes(result);
        if (result->forward_s > t.forward_s) t.forward_s = result->forward_s;
        if (result->backward_s > t.backward_s) t.backward_s = result->backward_s;
    }
    add_stats(&t.both, &t.forward);
    add_stats(&t.both, &t.backward);
    return t;
}

static int report_json(const run_job *job, const totals *t) {
    json_t *object = json_pack("{s:o,s:o,s:o}", "knobs", knobs_json(job), "shape", shape_json(job->problem), "bad_ids",
                               bad_ids_json(&job->results[0].report));
    json_t *ranks = json_array();
    for (int r = 0; r < job->problem->nranks; r++) json_array_append_new(ranks, rank_json(job, r));
    int bad = json_object_update_new(object, stats_json(&t->both));
    bad |= json_object_set_new(object, "planned_bytes", json_integer(t->planned_bytes));
    bad |= json_object_set_new(object, "peak_bytes", json_integer(t->peak_bytes));
    bad |= json_object_set_new(object, "forward", stats_json(&t->forward));
    if (job->problem->dout) bad |= json_object_set_new(object, "backward", stats_json(&t->backward));
    bad |= json_object_set_new(object, "ranks", ranks);
    if (!bad) return cli_print_json(object);
    json_decref(object);
    return cli_print_json(NULL);
}

static void print_call(const char *name, const ferry_stats *s, double seconds) {
    const double mb = 1e-6;
    printf("%-9s %.3f s; %" PRId64 " rows, %" PRId64 " pulls, %" PRId64 " macrobatches, ring high-water %" PRId64
           " rows, %" PRId64 " rows recomputed\n",
           name, seconds, s->rows, s->pulls, s->macrobatches, s->ring_high_water, s->recomputed_rows);
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
    printf("knobs     %d ranks (%s), %d + %d workers each, %s; minibatch %" PRId64 ", ring %" PRId64
           ", context %" PRId64 " rows\n",
           p->nranks, job->options->processes ? "processes" : "threads", job->comm_workers, job->compute_workers,
           machine_isa_name((ferry_isa)job->options->isa), plan->minibatch_rows, plan->ring_rows, plan->context_rows);
    print_call("forward", &t->forward, t->forward_s);
    if (p->dout) print_call("backward", &t->backward, t->backward_s);
    printf("memory    planned %.2f MB, peak %.2f MB over all ranks\n", 1e-6 * (double)t->planned_bytes,
           1e-6 * (double)t->peak_bytes);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int run_report(const run_job *job) {
    totals t = sum_up(job);
    return job->options->json ? report_json(job, &t) : report_text(job, &t);
}
