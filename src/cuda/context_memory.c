/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of contexts that the library gives. A context may be destroyed while calls that use it are in flight, and
 * freeing device memory waits for the device, which may wait for a peer. So what cannot be freed at once is kept, for
 * the next context of the layer, whose calls come after those in flight, or until nothing is in flight; where ranks
 * share the device, until the layer goes.
 */
#include "cuda/backend.h"

struct fy_gpu_spare {
    uint8_t *memory;
    fy_gpu_spare *next;
};

/* Whether freeing may wait: for calls of this rank, or of another one on its device. */
static int is_busy(const fy_gpu_comm *g) {
    return g->sharing > 1 || (g->called && cudaEventQuery(g->last) == cudaErrorNotReady);
}

static void free_memory(fy_gpu_layer *l, uint8_t *memory) {
    cudaFree(memory);
    fy_memory_count(&l->layer->comm->memory, -l->layer->plan.context_memory_bytes);
}

/* The memory of the first one, which is taken out of the list. */
static uint8_t *pop(fy_gpu_layer *l) {
    fy_gpu_spare *spare = l->spare;
    uint8_t *memory = spare->memory;
    l->spare = spare->next;
    fy_free(&l->layer->comm->memory, spare, sizeof *spare);
    return memory;
}

ferry_status fy_gpu_context_memory_take(fy_gpu_layer *l, uint8_t **memory) {
    size_t bytes = (size_t)l->layer->plan.context_memory_bytes;
    if (l->spare) {
        *memory = pop(l);
        return FERRY_OK;
    }
    cudaError_t error = cudaMalloc((void **)memory, bytes);
    if (error != cudaSuccess)
        return fy_fail(FERRY_E_MEMORY, "a context's memory: the device did not give %zu bytes (%s)", bytes,
                       cudaGetErrorString(error));
    fy_memory_count(&l->layer->comm->memory, (int64_t)bytes);
    return FERRY_OK;
}

void fy_gpu_context_memory_give(fy_gpu_layer *l, uint8_t *memory) {
    fy_gpu_spare *spare;
    if (is_busy(fy_gpu_comm_of(l->layer->comm)) &&
        fy_alloc(&l->layer->comm->memory, sizeof *spare, "a spare context", (void **)&spare) == FERRY_OK) {
        *spare = (fy_gpu_spare){memory, l->spare};
        l->spare = spare;
        return;
    }
    free_memory(l, memory);
    fy_gpu_context_memory_free(l);
}

void fy_gpu_context_memory_free(fy_gpu_layer *l) {
    while (l->spare) free_memory(l, pop(l));
}
