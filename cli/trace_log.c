/* SPDX-License-Identifier: Apache-2.0 */
/* What the observer records: begins and ends in buffers of one writer each, and spans made of them afterwards. */
#include "cli/trace.h"

#include "cli/launch.h"

int trace_log_create(trace_log *log, int nranks, int comm_workers, int compute_workers, int64_t capacity) {
    *log = (trace_log){.nranks = nranks, .comm_workers = comm_workers, .compute_workers = compute_workers};
    log->workers = 1 + comm_workers + compute_workers;
    int64_t count = (int64_t)nranks * log->workers;
    log->bytes = (size_t)count * (sizeof(trace_buffer) + (size_t)capacity * sizeof(trace_event));
    log->buffers = cli_shared_alloc(log->bytes);
    if (!log->buffers) return -1;
    trace_event *events = (trace_event *)(log->buffers + count);
    for (int64_t i = 0; i < count; i++)
        log->buffers[i] = (trace_buffer){.events = events + i * capacity, .capacity = capacity};
    return 0;
}

int trace_log_create_gpu(trace_log *log, int nranks, int sms, int64_t capacity) {
    int failed = trace_log_create(log, nranks, 0, sms * FERRY_SM_WORKERS, capacity);
    log->sms = sms;
    return failed;
}

/* When the rank's wait for its peers at the head of a call was over; -1: it has none. */
static int64_t released_ns(const trace_log *log, int rank, int backward) {
    const trace_buffer *b = trace_buffer_of(log, rank, -1);
    for (int64_t i = 0; i < b->count; i++)
        if (b->events[i].backward == backward && b->events[i].wait && !b->events[i].begin) return b->events[i].ns;
    return -1;
}

static void shift(trace_log *log, int rank, int backward, int64_t ns) {
    for (int worker = -1; worker < log->workers - 1; worker++) {
        trace_buffer *b = trace_buffer_of(log, rank, worker);
        for (int64_t i = 0; i < b->count; i++)
            if (b->events[i].backward == backward) b->events[i].ns += ns;
    }
}

/* The end of the forward to the begin of the backward, over all ranks; 0 where there is only one of them. */
static int64_t gap_ns(const trace_log *log) {
    int64_t end = INT64_MIN, begin = INT64_MAX;
    for (int i = 0; i < log->nranks * log->workers; i++) {
        const trace_buffer *b = &log->buffers[i];
        for (int64_t k = 0; k < b->count; k++) {
            int64_t ns = b->events[k].ns;
            if (b->events[k].backward && ns < begin) begin = ns;
            if (!b->events[k].backward && ns > end) end = ns;
        }
    }
    return end == INT64_MIN || begin == INT64_MAX ? 0 : begin - end;
}

void trace_log_align(trace_log *log) {
    for (int backward = 0; backward < 2; backward++) {
        int64_t first = released_ns(log, 0, backward);
        for (int rank = 1; rank < log->nranks; rank++) {
            int64_t mine = released_ns(log, rank, backward);
            if (first >= 0 && mine >= 0) shift(log, rank, backward, first - mine);
        }
    }
    int64_t gap = gap_ns(log);
    for (int rank = 0; rank < log->nranks; rank++) shift(log, rank, 1, -gap);
}

void trace_log_destroy(trace_log *log) {
    cli_shared_free(log->buffers, log->bytes);
    log->buffers = NULL;
}

trace_buffer *trace_buffer_of(const trace_log *log, int rank, int worker) {
    return &log->buffers[(int64_t)rank * log->workers + worker + 1];
}

static int record(void *user, const ferry_event *event) {
    trace_buffer *buffer = trace_buffer_of(user, event->rank, event->worker);
    buffer->lost += event->lost;
    if (buffer->count == buffer->capacity) {
        buffer->lost++;
        return 0;
    }
    buffer->events[buffer->count++] = (trace_event){.ns = event->time_ns,
                                                    .what = event->what,
                                                    .macrobatch = event->macrobatch,
                                                    .step = event->step,
                                                    .phase = (uint8_t)event->phase,
                                                    .begin = (uint8_t)event->begin,
                                                    .wait = (uint8_t)event->wait,
                                                    .backward = (uint8_t)event->backward};
    return 0;
}

ferry_observer trace_observer(trace_log *log) { return (ferry_observer){.event = record, .user = log}; }

void trace_log_reset(trace_log *log, int rank) {
    for (int w = 0; w < log->workers; w++) {
        trace_buffer *buffer = trace_buffer_of(log, rank, w - 1);
        buffer->count = buffer->lost = 0;
    }
}

int64_t trace_log_lost(const trace_log *log) {
    int64_t lost = 0;
    for (int i = 0; i < log->nranks * log->workers; i++) lost += log->buffers[i].lost;
    return lost;
}

int trace_log_extent(const trace_log *log, int64_t *begin_ns, int64_t *end_ns) {
    int found = 0;
    for (int i = 0; i < log->nranks * log->workers; i++) {
        const trace_buffer *b = &log->buffers[i];
        if (b->count == 0) continue;
        int64_t first = b->events[0].ns, last = b->events[b->count - 1].ns;
        if (!found || first < *begin_ns) *begin_ns = first;
        if (!found || last > *end_ns) *end_ns = last;
        found = 1;
    }
    return found ? 0 : -1;
}

int64_t trace_spans(const trace_buffer *buffer, int64_t end_ns, trace_span *spans) {
    enum { MAX_DEPTH = 8 };
    int64_t open[MAX_DEPTH], count = 0;
    int depth = 0;
    for (int64_t i = 0; i < buffer->count; i++) {
        const trace_event *e = &buffer->events[i];
        if (e->begin && depth < MAX_DEPTH) {
            spans[count] = (trace_span){.begin_ns = e->ns, .end_ns = end_ns, .event = e, .depth = depth};
            open[depth++] = count++;
        } else if (!e->begin && depth > 0) {
            spans[open[--depth]].end_ns = e->ns;
        }
    }
    return count;
}
