/* SPDX-License-Identifier: Apache-2.0 */
/* What `ferry plan` says: a summary for people, or one JSON object. */
#include "cli/message.h"
#include "cli/plan.h"
#include "cli/counters.h"

#include <inttypes.h>
#include <stdio.h>

static plan_work work_of(const plan_job *job, int both) {
    return plan_work_of(&job->counts, &job->config, both, job->options->grad_bf16 ? 2 : 4);
}

static int64_t planned_bytes(const plan_job *job, int rank) {
    const ferry_plan *plan = &job->counts.rank[rank].plan;
    return plan->layer_bytes + (job->input.has_backward ? plan->context_bytes : 0);
}

/* ---- JSON ---- */

static json_t *machine_json(const plan_job *job) {
    const machine *m = &job->machine;
    return json_pack("{s:s,s:I,s:f,s:b,s:f,s:b,s:f,s:b}", "name", m->name, "processors", (json_int_t)m->processors,
                     "product_flop_per_s", m->product.per_s, "product_measured", m->product.measured,
                     "copy_bytes_per_s", m->copy.per_s, "copy_measured", m->copy.measured, "link_bytes_per_s",
                     m->link.per_s, "link_measured", m->link.measured);
}

static json_t *shape_json(const plan_job *job) {
    const ferry_layer_config *c = &job->config;
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "tokens", (json_int_t)job->input.first_token[job->input.nranks],
                     "slots", (json_int_t)c->slots, "hidden", (json_int_t)c->hidden, "intermediate",
                     (json_int_t)c->intermediate, "shared", (json_int_t)c->shared, "experts", (json_int_t)c->experts);
}

/* What may be tuned: its flag, and whether layers on CPUs and on GPUs have it. */
static const struct choice {
    const char *name;
    int flag, cpu, gpu;
} choices[] = {{"minibatch", FERRY_TUNED_MINIBATCH_ROWS, 1, 1},
               {"pull_warps", FERRY_TUNED_PULL_WARPS, 0, 1},
               {"fan_out", FERRY_TUNED_FAN_OUT, 0, 1},
               {"comm_sms", FERRY_TUNED_COMM_SMS, 0, 1}};
enum { CHOICES = sizeof choices / sizeof *choices };

static int has_choice(const plan_job *job, const struct choice *c) {
    return job->options->backend == FERRY_CUDA ? c->gpu : c->cpu;
}

static const char *origin_of(const plan_job *job, const struct choice *c) {
    return job->tuned & c->flag ? "tuned" : job->given & c->flag ? "given" : "by rule";
}

static json_t *origins_json(const plan_job *job) {
    json_t *object = json_object();
    for (int i = 0; i < CHOICES; i++)
        if (has_choice(job, &choices[i]))
            json_object_set_new(object, choices[i].name, json_string(origin_of(job, &choices[i])));
    return object;
}

static json_t *knobs_json(const plan_job *job) {
    const ferry_plan *plan = &job->counts.rank[0].plan;
    json_t *object = json_pack("{s:i,s:I,s:I,s:I,s:s,s:o}", "ranks", job->input.nranks, "minibatch",
                               (json_int_t)plan->minibatch_rows, "ring", (json_int_t)plan->ring_rows, "context",
                               (json_int_t)plan->context_rows, "grad_dtype", job->options->grad_bf16 ? "bf16" : "f32",
                               "origin", origins_json(job));
    json_t *own = job->options->backend == FERRY_CUDA
                      ? json_pack("{s:s,s:i,s:i,s:s,s:i}", "backend", "cuda", "multiprocessors", plan->multiprocessors,
                                  "pull_warps", plan->pull_warps, "fan_out", plan->fan_out == 1 ? "once" : "each",
                                  "comm_sms", plan->comm_sms)
                      : json_pack("{s:s,s:i,s:i}", "backend", "cpu", "comm_workers", job->input.comm_workers,
                                  "compute_workers", job->input.compute_workers);
    json_object_update_new(object, own);
    return object;
}

static json_t *floor_json(const plan_job *job, int both) {
    plan_work w = work_of(job, both);
    plan_floor f = plan_floor_of(&w, &job->machine);
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "flop", w.flop, "link_bytes", w.link,
                     "link_bytes_without_fanout", w.link_each, "memory_bytes", w.memory, "product_seconds", f.flop,
                     "link_seconds", f.link, "memory_seconds", f.memory, "floor_seconds", f.floor);
}

static json_t *direction_json(const plan_bytes *in, const plan_bytes *out) {
    return json_pack("{s:I,s:I,s:I,s:I}", "in", (json_int_t)in->fanned, "out", (json_int_t)out->fanned,
                     "in_without_fanout", (json_int_t)in->each, "out_without_fanout", (json_int_t)out->each);
}

static json_t *rank_json(const plan_job *job, int rank) {
    const plan_rank *p = &job->counts.rank[rank];
    json_t *object =
        json_pack("{s:i,s:I,s:I,s:o,s:o,s:o}", "rank", rank, "tokens", (json_int_t)p->tokens, "planned_bytes",
                  (json_int_t)planned_bytes(job, rank), "plan", planned_json(&p->plan), "forward",
                  counters_json(&p->forward), "forward_link", direction_json(&p->forward_in, &p->forward_out));
    if (!object || !job->input.has_backward) return object;
    json_object_set_new(object, "backward", counters_json(&p->backward));
    json_object_set_new(object, "backward_link", direction_json(&p->backward_in, &p->backward_out));
    return object;
}

/* One entry per ordered pair of ranks. */
static json_t *links_json(const plan_job *job, int backward) {
    json_t *links = json_array();
    for (int from = 0; from < job->counts.nranks; from++) {
        for (int to = 0; to < job->counts.nranks; to++) {
            plan_bytes b = plan_link(&job->counts, from, to, backward);
            if (from == to) continue;
            json_array_append_new(links, json_pack("{s:i,s:i,s:I,s:I}", "from", from, "to", to, "bytes",
                                                   (json_int_t)b.fanned, "bytes_without_fanout", (json_int_t)b.each));
        }
    }
    return links;
}

static int report_json(const plan_job *job) {
    ferry_stats forward = {.size = 0}, backward = {.size = 0}, both = {.size = 0};
    int64_t planned = 0;
    json_t *ranks = json_array();
    for (int r = 0; r < job->counts.nranks; r++) {
        counters_add(&forward, &job->counts.rank[r].forward);
        counters_add(&backward, &job->counts.rank[r].backward);
        planned += planned_bytes(job, r);
        json_array_append_new(ranks, rank_json(job, r));
    }
    counters_add(&both, &forward);
    counters_add(&both, &backward);
    json_t *object =
        json_pack("{s:s,s:o,s:o,s:o,s:I}", "title", job->title, "machine", machine_json(job), "knobs", knobs_json(job),
                  "shape", shape_json(job), "minibatch_floor", (json_int_t)plan_two_waves(&job->config, &job->machine));
    int bad = json_object_update_new(object, counters_json(&both));
    bad |= json_object_set_new(object, "planned_bytes", json_integer(planned));
    bad |= json_object_set_new(object, "forward", counters_json(&forward));
    bad |= json_object_set_new(object, "forward_floor", floor_json(job, 0));
    bad |= json_object_set_new(object, "forward_links", links_json(job, 0));
    if (job->input.has_backward) {
        bad |= json_object_set_new(object, "backward", counters_json(&backward));
        bad |= json_object_set_new(object, "forward_backward_floor", floor_json(job, 1));
        bad |= json_object_set_new(object, "backward_links", links_json(job, 1));
    }
    bad |= json_object_set_new(object, "ranks", ranks);
    if (!bad) return cli_print_json(object);
    json_decref(object);
    return cli_print_json(NULL);
}

/* ---- Text ---- */

static const double mb = 1e-6, ms = 1e3;

static void print_layer(const plan_job *job) {
    const ferry_layer_config *c = &job->config;
    const ferry_plan *plan = &job->counts.rank[0].plan;
    int64_t waves = plan_two_waves(c, &job->machine);
    printf("layer     %s: %" PRId64 " tokens over %d rank%s x %" PRId64 " slots, H %" PRId64 ", I %" PRId64 ", %" PRId64
           " experts, shared expert %" PRId64 "\n",
           job->title, job->input.first_token[job->input.nranks], job->input.nranks, job->input.nranks == 1 ? "" : "s",
           c->slots, c->hidden, c->intermediate, c->experts, c->shared);
    if (job->options->backend == FERRY_CUDA)
        printf(
            "knobs     %d multiprocessors each, %d of them for communication alone; %d pulling warps, a row pulled %s",
            plan->multiprocessors, plan->comm_sms, plan->pull_warps, plan->fan_out == 1 ? "once" : "for each use");
    else
        printf("knobs     %d + %d workers each", job->input.comm_workers, job->input.compute_workers);
    printf("; minibatch %" PRId64 ", ring %" PRId64 ", context %" PRId64 " rows", plan->minibatch_rows, plan->ring_rows,
           plan->context_rows);
    if (waves) printf("; two waves of product tiles on %s: %" PRId64 " rows", job->machine.name, waves);
    printf("\nchosen    ");
    for (int i = 0, any = 0; i < CHOICES; i++)
        if (has_choice(job, &choices[i]))
            printf("%s%s %s", any++ ? ", " : "", choices[i].name, origin_of(job, &choices[i]));
    printf("\nmemory    rank 0, MB: symmetric %.2f, ring %.2f, tables %.2f, context %.2f\n",
           mb * (double)plan->symmetric_bytes, mb * (double)plan->ring_bytes, mb * (double)plan->table_bytes,
           mb * (double)plan->context_bytes);
}

static void print_ranks(const plan_job *job) {
    int most = 0, least = 0;
    for (int r = 0; r < job->counts.nranks; r++) {
        if (job->counts.rank[r].forward.rows > job->counts.rank[most].forward.rows) most = r;
        if (job->counts.rank[r].forward.rows < job->counts.rank[least].forward.rows) least = r;
    }
    const plan_rank *p = &job->counts.rank[most];
    printf("busiest   rank %d: %" PRId64 " rows (the least busy, rank %d, %" PRId64 "), %" PRId64
           " macrobatch%s, %" PRId64 " steps, %" PRId64 " pulls, %" PRId64 " rows recomputed\n",
           most, p->forward.rows, least, job->counts.rank[least].forward.rows, p->forward.macrobatches,
           p->forward.macrobatches == 1 ? "" : "es", p->forward.steps, p->forward.pulls, p->backward.recomputed_rows);
}

static void print_work(const plan_job *job, const char *name, int both) {
    plan_work w = work_of(job, both);
    plan_floor f = plan_floor_of(&w, &job->machine);
    printf("%-9s %.4g GFLOP; between ranks %.2f MB (%.2f without fan-out) in the busier direction; memory %.2f MB\n",
           name, 1e-9 * w.flop, mb * w.link, mb * w.link_each, mb * w.memory);
    printf("%-9s products %.3f ms, links %.3f ms, memory %.3f ms: floor %.3f ms\n", "", ms * f.flop, ms * f.link,
           ms * f.memory, ms * f.floor);
}

static const char *origin(const machine_rate *rate) { return rate->measured ? "measured" : "peak"; }

static int report_text(const plan_job *job) {
    const machine *m = &job->machine;
    print_layer(job);
    print_ranks(job);
    printf("machine   %s, per rank: products %.4g GFLOP/s (%s), copy %.4g GB/s (%s), links %.4g GB/s (%s)\n", m->name,
           1e-9 * m->product.per_s, origin(&m->product), 1e-9 * m->copy.per_s, origin(&m->copy), 1e-9 * m->link.per_s,
           origin(&m->link));
    print_work(job, "forward", 0);
    if (job->input.has_backward) print_work(job, "fwd+bwd", 1);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int plan_report(const plan_job *job) { return job->options->json ? report_json(job) : report_text(job); }
