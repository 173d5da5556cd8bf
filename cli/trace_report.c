/* SPDX-License-Identifier: Apache-2.0 */
/* What the workers did, in numbers: time per phase, waits, and the rest, in which nothing was ready. */
#include "cli/message.h"
#include "cli/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const phase_names[] = {
#define PHASE_NAME(NAME, name) #name,
    FERRY_PHASE_MAP(PHASE_NAME)
#undef PHASE_NAME
};

const char *trace_phase_name(int phase) { return phase_names[phase]; }

void trace_worker_name(const trace_log *log, int worker, char *to, size_t room) {
    static const char *const roles[FERRY_SM_WORKERS] = {"feed",   "signal",     "pull 1",
                                                        "pull 2", "multiply 1", "multiply 2"};
    if (worker < 0)
        snprintf(to, room, log->sms ? "schedule" : "caller");
    else if (log->sms)
        snprintf(to, room, "SM %d %s", worker / FERRY_SM_WORKERS, roles[worker % FERRY_SM_WORKERS]);
    else if (worker < log->comm_workers)
        snprintf(to, room, "comm %d", worker);
    else
        snprintf(to, room, "compute %d", worker - log->comm_workers);
}

void trace_title(const trace_job *job, char *to, size_t room) {
    const run_problem *p = job->problem;
    const trace_log *log = &job->log;
    char workers[64];
    if (log->sms)
        snprintf(workers, sizeof workers, "%d multiprocessors", log->sms);
    else
        snprintf(workers, sizeof workers, "%d + %d workers", log->comm_workers, log->compute_workers);
    snprintf(to, room,
             "H %" PRId64 ", I %" PRId64 ", E %" PRId64 ", K %" PRId64 ", T %" PRId64
             "; %d rank%s (%s), %s; ring %" PRId64 ", minibatch %" PRId64 " rows",
             p->hidden, p->intermediate, p->experts, p->slots, p->max_tokens, p->nranks, p->nranks == 1 ? "" : "s",
             job->options->processes ? "processes" : "threads", workers, job->plan.ring_rows, job->plan.minibatch_rows);
}

/* Over all threads of all ranks. */
typedef struct totals {
    int64_t units[FERRY_PHASE_COUNT], work_ns[FERRY_PHASE_COUNT], wait_ns[FERRY_PHASE_COUNT];
} totals;

static void add_worker(totals *t, const trace_span *spans, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const trace_event *e = spans[i].event;
        int64_t ns = spans[i].end_ns - spans[i].begin_ns;
        if (e->wait) {
            t->wait_ns[e->phase] += ns;
            if (spans[i].depth > 0) t->work_ns[e->phase] -= ns;
        } else {
            t->units[e->phase]++;
            t->work_ns[e->phase] += ns;
        }
    }
}

static int count_all(const trace_log *log, int64_t end_ns, totals *t) {
    for (int rank = 0; rank < log->nranks; rank++) {
        for (int worker = -1; worker < log->workers - 1; worker++) {
            const trace_buffer *b = trace_buffer_of(log, rank, worker);
            trace_span *spans = malloc(((size_t)b->count + 1) * sizeof *spans);
            if (!spans) return cli_fail("no memory for the report");
            add_worker(t, spans, trace_spans(b, end_ns, spans));
            free(spans);
        }
    }
    return CLI_OK;
}

/* Shares are of the time of all threads but the callers, who make the schedule and sleep after it. */
static void print_table(const totals *t, double all_ms) {
    double known_ms = 0;
    printf("%-10s %8s %12s %8s %12s %8s\n", "phase", "units", "work ms", "share", "wait ms", "share");
    for (int phase = 0; phase < FERRY_PHASE_COUNT; phase++) {
        double work_ms = 1e-6 * (double)t->work_ns[phase], wait_ms = 1e-6 * (double)t->wait_ns[phase];
        printf("%-10s %8" PRId64 " %12.3f ", phase_names[phase], t->units[phase], work_ms);
        if (phase == FERRY_PHASE_SCHEDULE) {
            printf("%8s %12.3f\n", "", wait_ms);
            continue;
        }
        printf("%7.1f%% %12.3f %7.1f%%\n", 100 * work_ms / all_ms, wait_ms, 100 * wait_ms / all_ms);
        known_ms += work_ms + wait_ms;
    }
    printf("%-10s %8s %12s %8s %12.3f %7.1f%%\n", "idle", "", "", "", all_ms - known_ms,
           100 * (all_ms - known_ms) / all_ms);
}

int trace_report(const trace_job *job) {
    const trace_log *log = &job->log;
    const trace_options *o = job->options;
    int64_t begin_ns = 0, end_ns = 0, lost = trace_log_lost(log);
    totals t = {{0}, {0}, {0}};
    char title[256];
    trace_log_extent(log, &begin_ns, &end_ns);
    int code = count_all(log, end_ns, &t);
    if (code) return code;

    double whole_ms = 1e-6 * (double)(end_ns - begin_ns);
    trace_title(job, title, sizeof title);
    printf("%s\n%s: %.3f ms from the first event to the last\n\n", title,
           o->backward ? "forward and backward" : "forward", whole_ms);
    print_table(&t, whole_ms * log->nranks * (log->workers - 1));
    if (lost > 0) printf("incomplete: %" PRId64 " events found no room and are not counted\n", lost);
    if (o->json || o->svg)
        printf("\nwrote %s%s%s\n", o->json ? o->json : "", o->json && o->svg ? ", " : "", o->svg ? o->svg : "");
    return fflush(stdout) ? cli_fail("cannot write to standard output") : CLI_OK;
}
