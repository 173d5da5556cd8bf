/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Chrome trace event format: an object with a list of begin ("B") and end ("E") events, which Perfetto and
 * chrome://tracing open. pid is the rank; tid is the worker + 2, since some viewers take thread 0 for an idle thread
 * of the whole machine.
 */
#include "cli/message.h"
#include "cli/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct writer {
    FILE *file;
    int failed; /* no memory for an event */
    int some;   /* an event was written */
} writer;

/* Writes one event on a line of its own and drops the reference. */
static void put(writer *w, json_t *event) {
    if (w->some) fputs(",\n", w->file);
    w->some = 1;
    if (!event || json_dumpf(event, w->file, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0) w->failed = 1;
    json_decref(event);
}

static int tid_of(int worker) { return worker + 2; }

static void put_names(writer *w, const trace_log *log, int rank) {
    char name[64];
    snprintf(name, sizeof name, "rank %d", rank);
    put(w, json_pack("{s:s,s:s,s:i,s:{s:s}}", "name", "process_name", "ph", "M", "pid", rank, "args", "name", name));
    put(w, json_pack("{s:s,s:s,s:i,s:{s:i}}", "name", "process_sort_index", "ph", "M", "pid", rank, "args",
                     "sort_index", rank));
    for (int worker = -1; worker < log->workers - 1; worker++) {
        trace_worker_name(log, worker, name, sizeof name);
        put(w, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", "thread_name", "ph", "M", "pid", rank, "tid",
                         tid_of(worker), "args", "name", name));
        put(w, json_pack("{s:s,s:s,s:i,s:i,s:{s:i}}", "name", "thread_sort_index", "ph", "M", "pid", rank, "tid",
                         tid_of(worker), "args", "sort_index", tid_of(worker)));
    }
}

static void put_event(writer *w, const trace_event *e, int rank, int worker, int64_t zero_ns) {
    double us = 1e-3 * (double)(e->ns - zero_ns);
    char name[96];
    if (!e->begin) {
        put(w, json_pack("{s:s,s:f,s:i,s:i}", "ph", "E", "ts", us, "pid", rank, "tid", tid_of(worker)));
        return;
    }
    snprintf(name, sizeof name, "%s%s", e->wait ? "wait: " : "", e->what);
    put(w, json_pack("{s:s,s:s,s:s,s:f,s:i,s:i,s:{s:s,s:i,s:i,s:i,s:b}}", "name", name, "cat",
                     e->wait ? "wait" : trace_phase_name(e->phase), "ph", "B", "ts", us, "pid", rank, "tid",
                     tid_of(worker), "args", "phase", trace_phase_name(e->phase), "worker", worker, "macrobatch",
                     e->macrobatch, "step", e->step, "backward", e->backward));
}

int trace_write_json(const trace_job *job, const char *path) {
    const trace_log *log = &job->log;
    int64_t zero_ns = 0, end_ns = 0;
    char title[256];
    writer w = {.file = fopen(path, "w")};
    if (!w.file) return cli_fail("%s: cannot be written: %s", path, strerror(errno));
    trace_log_extent(log, &zero_ns, &end_ns);
    trace_title(job, title, sizeof title);
    fputs(TRACE_JSON_BEGINNING, w.file);
    put(&w, json_pack("{s:s,s:s,s:I}", "ferry", ferry_version(), "layer", title, "lost_events",
                      (json_int_t)trace_log_lost(log)));
    fputs(",\n\"traceEvents\":[\n", w.file);
    w.some = 0;
    for (int rank = 0; rank < log->nranks; rank++) {
        put_names(&w, log, rank);
        for (int worker = -1; worker < log->workers - 1; worker++) {
            const trace_buffer *b = trace_buffer_of(log, rank, worker);
            for (int64_t i = 0; i < b->count; i++) put_event(&w, &b->events[i], rank, worker, zero_ns);
        }
    }
    fputs("\n]}\n", w.file);
    int bad = ferror(w.file);
    bad |= fclose(w.file) != 0;
    if (w.failed) return cli_fail("%s: no memory, or an error, while writing an event", path);
    return bad ? cli_fail("%s: cannot be written: %s", path, strerror(errno)) : CLI_OK;
}
