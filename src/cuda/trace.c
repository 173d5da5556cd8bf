/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the times that a traced call has left on the device to events for the communicator's observer. Layers of a
 * communicator without an observer have none of this.
 */
#include "cuda/backend.h"

#include "cuda/error.h"
#include "cuda/kernels.h"
#include "cuda/kernels_backward.h"
#include "cuda/now.h"
#include "rules/ring.h"

#include <stdlib.h>
#include <string.h>

enum { TRACE_BYTES = 64 << 20, MOST_OPEN = 4 };

struct fy_gpu_tracer {
    fy_gpu_trace device;
    int armed, backward; /* a call whose times are to be told was enqueued; it is a backward */
};

static const struct {
    int waits;
    const char *what;
} launch_words[FY_LAUNCHES] = {
#define LAUNCH_WORDS(NAME, waits, what) {waits, what},
    FY_GPU_LAUNCH_MAP(LAUNCH_WORDS)
#undef LAUNCH_WORDS
};

/* Of marks from FY_SITES on. */
static const struct {
    ferry_phase phase;
    int waits;
    const char *what;
} mark_words[] = {
#define MARK_WORDS(NAME, phase, waits, what) {FERRY_PHASE_##phase, waits, what},
    FY_GPU_MARK_MAP(MARK_WORDS)
#undef MARK_WORDS
};

/* ---- Memory ---- */

static int64_t workers_of(const fy_gpu_trace *t) { return (int64_t)t->blocks * FERRY_SM_WORKERS; }

static ferry_status allocate(fy_gpu_trace *t) {
    size_t spans = (size_t)workers_of(t) * (size_t)t->room * sizeof *t->span;
    FY_CUDA(cudaMalloc((void **)&t->span, spans), "allocating room for the times of a traced call");
    FY_CUDA(cudaMalloc((void **)&t->count, (size_t)workers_of(t) * sizeof *t->count), "allocating counts of a trace");
    FY_CUDA(cudaMalloc((void **)&t->launch, 2 * FY_LAUNCHES * sizeof *t->launch), "allocating times of launches");
    cudaError_t error = fy_load_traced_forward();
    if (error == cudaSuccess) error = fy_load_traced_backward();
    FY_CUDA(error, "loading the kernels that are traced");
    return FERRY_OK;
}

ferry_status fy_gpu_trace_create(fy_gpu_layer *l, const ferry_comm *comm) {
    if (!comm->config.observer.event) return FERRY_OK;
    l->tracer = calloc(1, sizeof *l->tracer);
    if (!l->tracer) return fy_fail(FERRY_E_MEMORY, "no memory for a trace");
    fy_gpu_trace *t = &l->tracer->device;
    t->blocks = l->engine.knobs.sms;
    t->room = (int32_t)(TRACE_BYTES / (workers_of(t) * (int64_t)sizeof *t->span));
    return allocate(t);
}

void fy_gpu_trace_destroy(fy_gpu_layer *l) {
    if (!l->tracer) return;
    cudaFree(l->tracer->device.span);
    cudaFree(l->tracer->device.count);
    cudaFree(l->tracer->device.launch);
    free(l->tracer);
    l->tracer = NULL;
}

ferry_status fy_gpu_trace_begin(fy_gpu_layer *l, int backward, int capturing, cudaStream_t stream) {
    struct fy_gpu_tracer *tracer = l->tracer;
    if (!tracer) return FERRY_OK;
    const fy_gpu_trace *t = &tracer->device;
    tracer->armed = !capturing;
    tracer->backward = backward;
    l->engine.call.trace = capturing ? (fy_gpu_trace){NULL, NULL, NULL, 0, 0} : *t;
    if (capturing) return FERRY_OK;
    uint64_t none[2 * FY_LAUNCHES];
    for (int i = 0; i < FY_LAUNCHES; i++) {
        none[2 * i] = UINT64_MAX;
        none[2 * i + 1] = 0;
    }
    FY_CUDA(cudaMemsetAsync(t->count, 0, (size_t)workers_of(t) * sizeof *t->count, stream), "clearing a trace");
    FY_CUDA(cudaMemcpyAsync(t->launch, none, sizeof none, cudaMemcpyHostToDevice, stream), "clearing a trace");
    return FERRY_OK;
}

/* ---- Telling ---- */

/* Everything of one call, on the host. */
typedef struct trace_copy {
    const ferry_observer *observer;
    int rank, backward, ring_blocks;
    int64_t workers, most; /* spans of one worker that found room, at most */
    int32_t room;
    uint32_t *count;
    fy_gpu_span *span; /* [workers][most] */
    uint64_t launch[2 * FY_LAUNCHES];
    int32_t *step; /* [max_blocks] step of each block of rows */
    int64_t blocks;
} trace_copy;

static void tell(const trace_copy *copy, int worker, ferry_phase phase, int waits, int block, const char *what,
                 uint64_t ns, int begin, int64_t lost) {
    ferry_event e = {.phase = phase,
                     .begin = begin,
                     .wait = waits,
                     .backward = copy->backward,
                     .rank = copy->rank,
                     .worker = worker,
                     .macrobatch = block < 0 ? -1 : block / copy->ring_blocks,
                     .step = block < 0 || block >= copy->blocks ? -1 : copy->step[block],
                     .what = what,
                     .time_ns = (int64_t)ns,
                     .lost = lost};
    copy->observer->event(copy->observer->user, &e);
}

/* Launches follow each other; of one that lay beside the one before it the rest is told. */
static void tell_launches(const trace_copy *copy) {
    uint64_t last = 0;
    for (int i = 0; i < FY_LAUNCHES; i++) {
        uint64_t begin = copy->launch[2 * i], end = copy->launch[2 * i + 1];
        if (begin < last) begin = last;
        if (end < begin) continue; /* not one of this call's, or all of it beside another */
        last = end;
        for (int first = 1; first >= 0; first--)
            tell(copy, -1, FERRY_PHASE_SCHEDULE, launch_words[i].waits, -1, launch_words[i].what, first ? begin : end,
                 first, 0);
    }
}

static uint64_t end_of(const fy_gpu_span *s) { return s->begin_ns + s->ns; }

/* By begin, the one around others first. Waits inside a unit were written before it. */
static int compare(const void *a, const void *b) {
    const fy_gpu_span *x = a, *y = b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->ns != y->ns) return x->ns > y->ns ? -1 : 1;
    return x->what < y->what ? 1 : x->what > y->what ? -1 : 0; /* marks of waits at places are the lowest */
}

static void tell_span(const trace_copy *copy, int worker, const fy_gpu_span *s, int begin, int64_t lost) {
    int mark = (int)(s->what & FY_MARK_MASK), block = (int)(s->what >> FY_MARK_BITS) - 1;
    uint64_t ns = begin ? s->begin_ns : end_of(s);
    if (mark < FY_SITES)
        tell(copy, worker, fy_gpu_site_words[mark].phase, 1, block, fy_gpu_site_words[mark].what, ns, begin, lost);
    else
        tell(copy, worker, mark_words[mark - FY_SITES].phase, mark_words[mark - FY_SITES].waits, block,
             mark_words[mark - FY_SITES].what, ns, begin, lost);
}

static void tell_worker(const trace_copy *copy, int worker) {
    fy_gpu_span *span = copy->span + worker * copy->most;
    int64_t count = copy->count[worker], lost = count > copy->room ? count - copy->room : 0;
    const fy_gpu_span *open[MOST_OPEN];
    int depth = 0;
    count -= lost;
    qsort(span, (size_t)count, sizeof *span, compare);
    for (int64_t i = 0; i < count; i++) {
        while (depth > 0 && (depth == MOST_OPEN || end_of(open[depth - 1]) <= span[i].begin_ns))
            tell_span(copy, worker, open[--depth], 0, 0);
        tell_span(copy, worker, &span[i], 1, 0);
        open[depth++] = &span[i];
    }
    while (depth > 0) {
        depth--;
        tell_span(copy, worker, open[depth], 0, depth == 0 ? lost : 0);
    }
}

/* Steps are not on the device: they follow from the row tiles, which are there in the order of the walk. */
static ferry_status find_steps(const fy_gpu_layer *l, trace_copy *copy) {
    const fy_gpu_call *c = &l->engine.call;
    const fy_gpu_tile *from = copy->backward ? l->gradient.call.table.tile : c->table.tile;
    int32_t tiles = 0;
    FY_CUDA(fy_copy_now(&tiles, &c->table.state->tiles, sizeof tiles), "copying a trace");
    fy_gpu_tile *tile = malloc((size_t)(tiles > 0 ? tiles : 1) * sizeof *tile);
    copy->blocks = c->max_blocks;
    copy->step = malloc((size_t)(copy->blocks + 1) * sizeof *copy->step);
    if (!tile || !copy->step) {
        free(tile);
        return fy_fail(FERRY_E_MEMORY, "no memory to tell a trace");
    }
    cudaError_t error = fy_copy_now(tile, from, (size_t)tiles * sizeof *tile);
    int step = -1, in_macro = 0, macro = -1;
    for (int32_t t = 0; t < tiles && error == cudaSuccess; t++, in_macro++) {
        int block = tile[t].row / FY_BLOCK_ROWS;
        if (block / c->ring_blocks != macro) in_macro = 0;
        macro = block / c->ring_blocks;
        if (in_macro % c->mini_tiles == 0) step++;
        copy->step[block] = step;
        if (tile[t].rows > FY_BLOCK_ROWS) copy->step[block + 1] = step;
    }
    free(tile);
    FY_CUDA(error, "copying a trace");
    return FERRY_OK;
}

static ferry_status take(const fy_gpu_layer *l, trace_copy *copy) {
    const fy_gpu_trace *t = &l->tracer->device;
    copy->count = malloc((size_t)copy->workers * sizeof *copy->count);
    if (!copy->count) return fy_fail(FERRY_E_MEMORY, "no memory to tell a trace");
    FY_CUDA(fy_copy_now(copy->launch, t->launch, sizeof copy->launch), "copying a trace");
    FY_CUDA(fy_copy_now(copy->count, t->count, (size_t)copy->workers * sizeof *t->count), "copying a trace");
    for (int64_t w = 0; w < copy->workers; w++)
        if (copy->count[w] > copy->most) copy->most = copy->count[w];
    if (copy->most > t->room) copy->most = t->room;
    size_t width = (size_t)copy->most * sizeof *copy->span;
    copy->span = malloc(width * (size_t)copy->workers + 1);
    if (!copy->span) return fy_fail(FERRY_E_MEMORY, "no memory to tell a trace");
    if (width > 0)
        FY_CUDA(fy_copy_rows_now(copy->span, width, t->span, (size_t)t->room * sizeof *t->span, width,
                                 (size_t)copy->workers),
                "copying a trace");
    return find_steps(l, copy);
}

ferry_status fy_gpu_trace_tell(fy_gpu_layer *l, cudaStream_t stream) {
    if (!l->tracer || !l->tracer->armed) return FERRY_OK;
    const fy_gpu_call *c = &l->engine.call;
    trace_copy copy = {.observer = &l->layer->comm->config.observer,
                       .rank = c->rank,
                       .backward = l->tracer->backward,
                       .ring_blocks = c->ring_blocks,
                       .workers = workers_of(&l->tracer->device),
                       .room = l->tracer->device.room};
    l->tracer->armed = 0;
    FY_CUDA(cudaStreamSynchronize(stream), "waiting for a traced call");
    ferry_status status = take(l, &copy);
    if (status == FERRY_OK) {
        tell_launches(&copy);
        for (int64_t w = 0; w < copy.workers; w++) tell_worker(&copy, (int)w);
    }
    free(copy.count);
    free(copy.span);
    free(copy.step);
    return status;
}
