/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend behind the table of core/layer.h: devices, layers, and the order of calls over streams. */
#include "cuda/backend.h"

#include "cuda/error.h"
#include "cuda/range.h"
#include "cuda/scope.h"
#include "cuda/symmetric.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* What a rank tells the others about its device. */
typedef struct identity {
    char uuid[16];
    int32_t known;
} identity;

static ferry_status look_at_device(int device, identity *mine, char name[256], int *sms) {
    int devices = 0, major = 0, minor = 0;
    cudaError_t found = cudaGetDeviceCount(&devices);
    if (found == cudaErrorInsufficientDriver)
        return fy_fail(FERRY_E_CUDA, "ferry_comm_create: no CUDA driver (libcuda.so.1) here, or one that is older than "
                                     "this build's CUDA; install one, or use FERRY_CPU");
    FY_CUDA(found, "looking for CUDA devices");
    if (device < 0 || device >= devices)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: device %d of %d CUDA devices", device, devices);
    FY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "asking for the compute capability");
    FY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
            "asking for the compute capability");
    FY_CUDA(cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device), "counting multiprocessors");
    if (major != 9 || minor != 0)
        return fy_fail(FERRY_E_UNSUPPORTED, "ferry_comm_create: device %d has compute capability %d.%d, expected 9.0",
                       device, major, minor);
    struct cudaDeviceProp prop;
    FY_CUDA(cudaGetDeviceProperties(&prop, device), "asking for the device's identity");
    memcpy(mine->uuid, &prop.uuid, sizeof mine->uuid);
    memcpy(name, prop.name, sizeof prop.name);
    mine->known = 1;
    return FERRY_OK;
}

/* Ranks on one device must be threads of one process: their launches then share it at the same time. */
static ferry_status count_sharing(ferry_comm *comm, const identity *mine, fy_gpu_comm *g) {
    identity all[FY_MAX_RANKS];
    FY_TRY(fy_allgather(comm, mine, all, sizeof *mine));
    g->sharing = 0;
    for (int r = 0; r < comm->nranks; r++)
        g->sharing += all[r].known && !memcmp(all[r].uuid, mine->uuid, sizeof mine->uuid);
    if (g->sharing > 1 && !comm->config.bootstrap.same_process)
        return fy_fail(
            FERRY_E_UNSUPPORTED,
            "ferry_comm_create: %d ranks of different processes use one device, expected one device each (or "
            "ranks as threads of one process)",
            g->sharing);
    return FERRY_OK;
}

static ferry_status make_resources(fy_gpu_comm *g) {
    FY_CUDA(cudaEventCreateWithFlags(&g->last, cudaEventDisableTiming), "creating an event");
    FY_CUDA(cudaStreamCreateWithFlags(&g->side, cudaStreamNonBlocking), "creating a stream");
    FY_CUDA(cudaHostAlloc((void **)&g->one, sizeof *g->one, cudaHostAllocPortable), "allocating pinned memory");
    *g->one = 1;
    return FERRY_OK;
}

static void free_resources(ferry_comm *comm) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    if (g->last) cudaEventDestroy(g->last);
    if (g->side) cudaStreamDestroy(g->side);
    if (g->one) cudaFreeHost(g->one);
    fy_free(&comm->memory, g, sizeof *g);
    comm->backend = NULL;
}

/* By rule all multiprocessors of the device, shared out over the ranks that use it. That is also the most: a rank whose
 * blocks found no place would be waited for by those that hold the places. */
static ferry_status choose_multiprocessors(const fy_gpu_comm *g, int sms, ferry_comm_config *config) {
    int most = sms / g->sharing > 0 ? sms / g->sharing : 1;
    config->comm_workers = 0;
    if (config->compute_workers == 0) config->compute_workers = most;
    if (config->compute_workers <= most) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID,
                   "ferry_comm_create: config.compute_workers is %d, expected at most %d: device %d has %d "
                   "multiprocessors, shared by %d ranks",
                   config->compute_workers, most, g->device, sms, g->sharing);
}

static ferry_status comm_create(ferry_comm *comm) {
    fy_gpu_comm *g = NULL;
    identity mine = {.known = 0};
    int sms = 0;
    fy_on_device scope = {0};
    char name[256] = "";
    ferry_status status = look_at_device(comm->config.device, &mine, name, &sms);
    if (status == FERRY_OK)
        status = fy_alloc(&comm->memory, sizeof *g, "the CUDA backend of a communicator", (void **)&g);
    status = fy_agree(comm, status, "ferry_comm_create: looking at the devices");
    if (status != FERRY_OK) {
        fy_free(&comm->memory, g, sizeof *g);
        return status;
    }
    comm->backend = g;
    g->device = comm->config.device;
    memcpy(g->name, name, sizeof name);
    status = count_sharing(comm, &mine, g);
    if (status == FERRY_OK) status = choose_multiprocessors(g, sms, &comm->config);
    if (status == FERRY_OK) status = fy_enter_device(g->device, &scope);
    if (status == FERRY_OK) status = make_resources(g);
    if (status == FERRY_OK) status = fy_gpu_watch_start(comm);
    if (status != FERRY_OK) free_resources(comm);
    fy_leave_device(&scope);
    return status;
}

static void comm_destroy(ferry_comm *comm) {
    fy_on_device scope = {0};
    fy_enter_device(fy_gpu_comm_of(comm)->device, &scope);
    fy_gpu_watch_stop(comm);
    fy_gpu_sym_end(comm);
    free_resources(comm);
    fy_leave_device(&scope);
}

static ferry_status layer_create(ferry_layer *layer) {
    ferry_comm *comm = layer->comm;
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_gpu_layer *l = NULL;
    fy_on_device scope = {0};
    ferry_status status = fy_enter_device(g->device, &scope);
    if (status == FERRY_OK) status = fy_alloc(&comm->memory, sizeof *l, "the CUDA state of a layer", (void **)&l);
    status = fy_agree(comm, status, "ferry_layer_create");
    if (status == FERRY_OK)
        status = fy_gpu_memory_create(comm, g->device, fy_gpu_symmetric_bytes(&layer->shape),
                                      "ferry_layer_create: symmetric memory", &l->memory);
    if (status == FERRY_OK) {
        fy_gpu_knobs knobs = fy_gpu_knobs_of(&layer->shape, &layer->plan);
        status = fy_gpu_engine_create(&l->engine, &layer->shape, &knobs, g->device, layer->expert_rank, l->memory.part,
                                      comm->config.enter_timeout_s, comm->config.progress_timeout_s);
        if (status == FERRY_OK) status = fy_gpu_gradient_create(&l->gradient, &l->engine);
        if (status == FERRY_OK) status = fy_gpu_trace_create(l, comm);
        status = fy_agree(comm, status, "ferry_layer_create: device memory and kernels");
        if (status != FERRY_OK) {
            fy_gpu_trace_destroy(l);
            fy_gpu_gradient_destroy(&l->gradient);
            fy_gpu_engine_destroy(&l->engine);
            fy_gpu_memory_destroy(comm, &l->memory);
        }
    }
    if (status == FERRY_OK) {
        fy_memory_count(&comm->memory, l->engine.table_bytes + l->engine.ring_bytes + l->gradient.bytes);
        l->layer = layer;
        layer->state = l;
        pthread_mutex_lock(&g->lock);
        l->next = g->layers;
        g->layers = l;
        pthread_mutex_unlock(&g->lock);
    } else {
        fy_free(&comm->memory, l, sizeof *l);
    }
    fy_leave_device(&scope);
    return status;
}

/* Lets calls in flight end; where a peer keeps them, they are told to leave. Deadlines bound what is left. */
static void settle(fy_gpu_comm *g, fy_gpu_layer *l) {
    const struct timespec turn = {0, 1000000};
    for (int i = 0; g->called && i < 1000 && cudaEventQuery(g->last) == cudaErrorNotReady; i++) nanosleep(&turn, NULL);
    if (g->called && cudaEventQuery(g->last) == cudaErrorNotReady) {
        pthread_mutex_lock(&g->lock);
        fy_gpu_abort(g, l);
        pthread_mutex_unlock(&g->lock);
        cudaEventSynchronize(g->last);
    }
    cudaStreamSynchronize(g->side);
}

static void layer_destroy(ferry_layer *layer) {
    ferry_comm *comm = layer->comm;
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    fy_gpu_layer *l = layer->state;
    fy_on_device scope = {0};
    fy_enter_device(g->device, &scope);
    settle(g, l);
    pthread_mutex_lock(&g->lock);
    fy_gpu_layer **link = &g->layers;
    while (*link != l) link = &(*link)->next;
    *link = l->next;
    pthread_mutex_unlock(&g->lock);
    fy_gpu_context_memory_free(l);
    fy_memory_count(&comm->memory, -(l->engine.table_bytes + l->engine.ring_bytes + l->gradient.bytes));
    fy_gpu_trace_destroy(l);
    fy_gpu_gradient_destroy(&l->gradient);
    fy_gpu_engine_destroy(&l->engine);
    fy_gpu_memory_destroy(comm, &l->memory);
    fy_free(&comm->memory, l, sizeof *l);
    fy_leave_device(&scope);
}

/* Everything of a context is in its memory, on the device. */
static ferry_status context_create(ferry_context *context) {
    ferry_layer *layer = context->layer;
    fy_on_device scope;
    if (!context->owned) return FERRY_OK;
    FY_TRY(fy_enter_device(fy_gpu_comm_of(layer->comm)->device, &scope));
    ferry_status status = fy_gpu_context_memory_take(layer->state, &context->memory);
    fy_leave_device(&scope);
    return status;
}

static void context_destroy(ferry_context *context) {
    ferry_layer *layer = context->layer;
    fy_on_device scope = {0};
    if (!context->owned) return;
    fy_enter_device(fy_gpu_comm_of(layer->comm)->device, &scope);
    fy_gpu_context_memory_give(layer->state, context->memory);
    fy_leave_device(&scope);
}

/* Calls of one communicator run one after the other, on whatever streams. A capture orders its own. */
static ferry_status chain_before(fy_gpu_comm *g, cudaStream_t stream, int *capturing) {
    enum cudaStreamCaptureStatus capture;
    FY_CUDA(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is being captured");
    *capturing = capture != cudaStreamCaptureStatusNone;
    if (*capturing || !g->called || g->last_stream == stream) return FERRY_OK;
    FY_CUDA(cudaStreamWaitEvent(stream, g->last, 0), "ordering the call after the one before it");
    return FERRY_OK;
}

static ferry_status chain_after(fy_gpu_comm *g, cudaStream_t stream, int capturing) {
    if (capturing) return FERRY_OK;
    FY_CUDA(cudaEventRecord(g->last, stream), "marking the end of the call");
    g->last_stream = stream;
    g->called = 1;
    return FERRY_OK;
}

/* A report of an earlier call that nobody has polled comes back from this one, whose work is done all the same. */
static ferry_status pending_report(ferry_layer *layer) {
    ferry_report r = layer->report;
    if (r.status == FERRY_OK) return FERRY_OK;
    layer->report.status = FERRY_OK;
    if (r.status == FERRY_E_TOO_MANY_TOKENS)
        return fy_fail(r.status,
                       "an earlier call: rank %d passed %lld tokens, max_tokens is %lld; that call did nothing on any "
                       "rank",
                       r.rank, (long long)r.count, (long long)layer->shape.max_tokens);
    return fy_fail(r.status,
                   "an earlier call: %lld expert ids out of range, first %lld at rank %d, token %lld, slot %lld; they "
                   "counted as -1",
                   (long long)r.count, (long long)r.id, r.rank, (long long)r.token, (long long)r.slot);
}

static ferry_status forward(ferry_layer *layer, const ferry_forward_args *args) {
    fy_gpu_comm *g = fy_gpu_comm_of(layer->comm);
    fy_gpu_layer *l = layer->state;
    fy_on_device scope;
    int capturing = 0;
    fy_gpu_refresh(layer);
    FY_TRY(fy_fault_status(layer->comm));
    FY_TRY(fy_enter_device(g->device, &scope));
    ferry_status status = chain_before(g, (cudaStream_t)args->stream, &capturing);
    if (status == FERRY_OK) status = fy_gpu_trace_begin(l, 0, capturing, (cudaStream_t)args->stream);
    if (status == FERRY_OK)
        status = args->context ? fy_gpu_gradient_forward(&l->gradient, args->context->memory, args)
                               : fy_gpu_engine_forward(&l->engine, args);
    if (status == FERRY_OK) status = chain_after(g, (cudaStream_t)args->stream, capturing);
    if (status == FERRY_OK) status = fy_gpu_trace_tell(l, (cudaStream_t)args->stream);
    fy_leave_device(&scope);
    /* A call that was refused before its launches leaves what a context holds. */
    if (args->context && status == FERRY_E_CUDA) args->context->phase = FY_CONTEXT_EMPTY;
    if (status != FERRY_OK) return status;
    layer->forwards++;
    if (args->context) {
        args->context->phase = FY_CONTEXT_FILLED;
        args->context->forward = layer->forwards;
    }
    return pending_report(layer);
}

static ferry_status backward(ferry_layer *layer, const ferry_backward_args *args) {
    fy_gpu_comm *g = fy_gpu_comm_of(layer->comm);
    fy_gpu_layer *l = layer->state;
    fy_on_device scope;
    int capturing = 0;
    fy_gpu_refresh(layer);
    FY_TRY(fy_fault_status(layer->comm));
    FY_TRY(fy_enter_device(g->device, &scope));
    ferry_status status = chain_before(g, (cudaStream_t)args->stream, &capturing);
    if (status == FERRY_OK) status = fy_gpu_trace_begin(l, 1, capturing, (cudaStream_t)args->stream);
    if (status == FERRY_OK) status = fy_gpu_gradient_backward(&l->gradient, args->context->memory, args);
    if (status == FERRY_OK) status = chain_after(g, (cudaStream_t)args->stream, capturing);
    if (status == FERRY_OK) status = fy_gpu_trace_tell(l, (cudaStream_t)args->stream);
    fy_leave_device(&scope);
    if (status != FERRY_OK) return status;
    return pending_report(layer);
}

static ferry_status ranged_forward(ferry_layer *layer, const ferry_forward_args *args) {
    fy_range_begin("ferry_forward");
    ferry_status status = forward(layer, args);
    fy_range_end();
    return status;
}

static ferry_status ranged_backward(ferry_layer *layer, const ferry_backward_args *args) {
    fy_range_begin("ferry_backward");
    ferry_status status = backward(layer, args);
    fy_range_end();
    return status;
}

static void machine(const ferry_comm *comm, char *to, size_t room) {
    snprintf(to, room, "%s", ((const fy_gpu_comm *)comm->backend)->name);
}

static const fy_backend table = {.name = "cuda",
                                 .record_bytes = sizeof(fy_gpu_header),
                                 .machine = machine,
                                 .plan = fy_gpu_plan,
                                 .comm_create = comm_create,
                                 .comm_destroy = comm_destroy,
                                 .layer_create = layer_create,
                                 .layer_destroy = layer_destroy,
                                 .context_create = context_create,
                                 .context_destroy = context_destroy,
                                 .refresh = fy_gpu_refresh,
                                 .forward = ranged_forward,
                                 .backward = ranged_backward,
                                 .sym_alloc = fy_gpu_sym_alloc,
                                 .sym_free = fy_gpu_sym_free,
                                 .sym_peer = fy_gpu_sym_peer};

const fy_backend *const fy_backend_cuda = &table;
