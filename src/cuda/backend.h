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
    cudaStream_t side; /* for the abort word, while calls run */
    uint32_t *one;     /* pinned: 1 */
} fy_gpu_comm;

/* layer->state */
struct fy_gpu_layer {
    ferry_layer *layer;
    fy_gpu_engine engine;
    fy_gpu_gradient gradient;
    fy_gpu_memory memory;
    uint32_t reported; /* number of the call whose report has been taken over */
    int told;          /* the device knows that the communicator is over */
    fy_gpu_layer *next;
};

static inline fy_gpu_comm *fy_gpu_comm_of(const ferry_comm *comm) { return (fy_gpu_comm *)comm->backend; }

/* Starts and ends the watcher (watch.c). */
ferry_status fy_gpu_watch_start(ferry_comm *comm);
void fy_gpu_watch_stop(ferry_comm *comm);
/* Takes over what the device has reported: faults, bad ids, counters. Never blocks on the device. */
void fy_gpu_refresh(ferry_layer *layer);
/* Ends the device's waits of this rank's layer: its communicator is over or it is being destroyed. */
void fy_gpu_abort(fy_gpu_comm *g, fy_gpu_layer *l);

#endif
