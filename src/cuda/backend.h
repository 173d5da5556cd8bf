/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA backend keeps for a communicator and a layer. */
#ifndef FERRY_CUDA_BACKEND_H
#define FERRY_CUDA_BACKEND_H

#include "core/layer.h"
#include "cuda/launch_backward.h"
#include "cuda/memory.h"

#include <cuda_runtime.h>
#include <pthread.h>

typedef struct fy_gpu_layer fy_gpu_layer;
typedef struct fy_gpu_tracer fy_gpu_tracer;
typedef struct fy_gpu_spare fy_gpu_spare;
typedef struct fy_gpu_block fy_gpu_block;

/* comm->backend */
typedef struct fy_gpu_comm {
    int device;
    int sharing; /* ranks whose device is this one, this rank included */
    char name[256];
    cudaEvent_t last; /* end of the last call on this communicator */
    cudaStream_t last_stream;
    int called; /* `last` has been recorded */
    /* The watcher: carries faults between the host's control block and the device's words. */
    pthread_t watcher;
    pthread_mutex_t lock; /* of `layers` and what the watcher and calls both touch */
    pthread_cond_t wake;
    int stop;
    fy_gpu_layer *layers;
    fy_gpu_block *blocks; /* of symmetric memory for callers (symmetric.c) */
    cudaStream_t side;    /* for the abort word, while calls run */
    uint32_t *one;        /* pinned: 1 */
} fy_gpu_comm;

/* layer->state */
struct fy_gpu_layer {
    ferry_layer *layer;
    fy_gpu_engine engine;
    fy_gpu_gradient gradient;
    fy_gpu_memory memory;
    uint32_t reported;     /* number of the call whose report has been taken over */
    int told;              /* the device knows that the communicator is over */
    fy_gpu_tracer *tracer; /* NULL: nobody observes */
    fy_gpu_spare *spare;   /* memory of destroyed contexts that calls in flight may use */
    fy_gpu_layer *next;
};

static inline fy_gpu_comm *fy_gpu_comm_of(const ferry_comm *comm) { return (fy_gpu_comm *)comm->backend; }

/* Starts and ends the watcher (watch.c). */
ferry_status fy_gpu_watch_start(ferry_comm *comm);
void fy_gpu_watch_stop(ferry_comm *comm);
/* Takes over what the device has reported: faults, bad ids, counters. Never blocks on the device. */
void fy_gpu_refresh(ferry_layer *layer);
/* enum fy_gpu_site in words (watch.c). */
extern const struct fy_gpu_site_word {
    ferry_phase phase;
    const char *what;
} fy_gpu_site_words[FY_SITES];
/* Traces (trace.c), where the communicator has an observer: room for them, destroyed also after a failure; before the
 * launches of a call; and its events, after it. */
ferry_status fy_gpu_trace_create(fy_gpu_layer *l, const ferry_comm *comm);
void fy_gpu_trace_destroy(fy_gpu_layer *l);
ferry_status fy_gpu_trace_begin(fy_gpu_layer *l, int backward, int capturing, cudaStream_t stream);
ferry_status fy_gpu_trace_tell(fy_gpu_layer *l, cudaStream_t stream);
/* Memory of contexts (context_memory.c). `give` takes it back and never waits for a call in flight; `free`, when there
 * is none, frees what was kept. */
ferry_status fy_gpu_context_memory_take(fy_gpu_layer *l, uint8_t **memory);
void fy_gpu_context_memory_give(fy_gpu_layer *l, uint8_t *memory);
void fy_gpu_context_memory_free(fy_gpu_layer *l);
/* Ends the device's waits of this rank's layer: its communicator is over or it is being destroyed. */
void fy_gpu_abort(fy_gpu_comm *g, fy_gpu_layer *l);

#endif
