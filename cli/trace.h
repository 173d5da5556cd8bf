/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of `ferry trace`: the problem, one rank's calls, what the observer records, and the ways to show it.
 * Everything that ranks write is in memory that processes share.
 */
#ifndef FERRY_CLI_TRACE_H
#define FERRY_CLI_TRACE_H

#include "cli/knobs.h"
#include "cli/run.h"

/* ---- Recording ---- */

typedef struct trace_event {
    int64_t ns;       /* CLOCK_MONOTONIC, which all processes of a machine share; of a GPU its own, until aligned */
    const char *what; /* static text; forked ranks have it at the same address */
    int32_t macrobatch, step;
    uint8_t phase, begin, wait, backward;
} trace_event;

/* The events of one worker, or of a rank's calling thread. One thread writes it at a time, so nothing is locked. On a
 * GPU worker -1 has the schedule's launches. */
typedef struct trace_buffer {
    _Alignas(64) trace_event *events;
    int64_t count, capacity;
    int64_t lost; /* events that found it full */
} trace_buffer;

typedef struct trace_log {
    int nranks, comm_workers, compute_workers;
    int workers;           /* 1 + comm_workers + compute_workers: a rank's threads, the calling one first */
    int sms;               /* multiprocessors of a rank, FERRY_SM_WORKERS compute workers each; 0: threads */
    trace_buffer *buffers; /* [nranks * workers] */
    size_t bytes;          /* of the block of shared memory that begins with the buffers */
} trace_log;

/* `capacity`: events per worker. 0, or -1 when there is no memory. */
int trace_log_create(trace_log *log, int nranks, int comm_workers, int compute_workers, int64_t capacity);
/* For ranks on GPUs, of `sms` multiprocessors each. */
int trace_log_create_gpu(trace_log *log, int nranks, int sms, int64_t capacity);
/* Brings the clocks of GPUs together: the wait for peers at the head of a call ends at one moment on all ranks. Cuts
 * out the time between the calls, in which the events of the first one were told. */
void trace_log_align(trace_log *log);
void trace_log_destroy(trace_log *log);
/* Appends to the buffers of `log`, which stays the caller's. */
ferry_observer trace_observer(trace_log *log);
/* Forgets a rank's events. For its calling thread, between calls; the memory stays touched. */
void trace_log_reset(trace_log *log, int rank);
/* worker as in ferry_event: -1 is the calling thread. */
trace_buffer *trace_buffer_of(const trace_log *log, int rank, int worker);
int64_t trace_log_lost(const trace_log *log);
/* First and last time of all events; 0, or -1 when there is none. */
int trace_log_extent(const trace_log *log, int64_t *begin_ns, int64_t *end_ns);

/* A unit or a wait. Spans of a worker nest: depth 0 is a unit or a wait between units, 1 a wait inside a unit. */
typedef struct trace_span {
    int64_t begin_ns, end_ns;
    const trace_event *event; /* its begin */
    int depth;
} trace_span;

/* A worker's spans in the order of their begins; `spans` has room for buffer->count. Returns their number. What was
 * not seen to end (its event was lost) ends at end_ns. */
int64_t trace_spans(const trace_buffer *buffer, int64_t end_ns, trace_span *spans);

/* ---- The traced layer ---- */

typedef struct trace_options {
    const char *input, *shape, *json, *svg;
    int64_t ranks, processes; /* ranks 0: not given */
    layer_knobs knobs;
    int64_t backend, backward, events; /* events 0: not given */
} trace_options;

/* Random inputs and weights of a layer, in memory that children share. */
typedef struct trace_block {
    void *memory;
    size_t bytes;
} trace_block;

/* The extents of --shape, with tokens split as `ferry run` splits them. 0, or the exit code after a message; then
 * nothing is left. */
int trace_problem_size(run_problem *problem, const trace_options *options);
/* Allocates the block and draws its values. 0, or the exit code after a message; trace_problem_free in both cases. */
int trace_problem_fill(run_problem *problem, trace_block *block);
void trace_problem_free(run_problem *problem, trace_block *block);

typedef struct trace_job {
    const trace_options *options;
    const run_problem *problem;
    ferry_layer_config config;
    trace_log log;
    int comm_workers, compute_workers; /* for the communicator; on GPUs 0: the library's choice */
    ferry_plan plan;                   /* of rank 0 */
} trace_job;

/* A cli_rank_main; `user` is the trace_job: one call to warm up and one that is traced, and their backwards. */
int trace_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* ---- Showing ---- */

/* "H 2048, I 64, ..." with ranks and knobs, for titles. */
void trace_title(const trace_job *job, char *to, size_t room);
/* "comm 0", "compute 1", "caller", "SM 7 pull 2"; worker as in ferry_event. */
void trace_worker_name(const trace_log *log, int worker, char *to, size_t room);
/* "pull" and so on. */
const char *trace_phase_name(int phase);
/* Prints what every rank's workers did, phase by phase. 0, or the exit code after a message. */
int trace_report(const trace_job *job);
/* How the files begin: what does not is somebody else's. */
#define TRACE_JSON_BEGINNING "{\"displayTimeUnit\":\"ms\",\"otherData\":"
#define TRACE_SVG_BEGINNING "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\""
/* Chrome trace event format. 0, or the exit code after a message. */
int trace_write_json(const trace_job *job, const char *path);
/* A picture: one row per worker. 0, or the exit code after a message. */
int trace_write_svg(const trace_job *job, const char *path);

#endif
