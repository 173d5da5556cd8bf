/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer and a context are, and what a backend must provide. Checks and plans are here; work is the backend's. */
#ifndef FERRY_CORE_LAYER_H
#define FERRY_CORE_LAYER_H

#include "comm/comm.h"

/* The sizes of a layer as one rank sees them; everything that shapes memory or work derives from these. */
typedef struct fy_shape {
    int64_t hidden, intermediate, shared, experts, slots, max_tokens;
    int rank, nranks;
    int64_t local_experts;
    int64_t minibatch_rows, ring_rows, context_rows; /* chosen and rounded: multiples of 64 */
    int64_t least_context_rows;                      /* of any rank's context */
    int64_t max_rows;                                /* nranks * max_tokens * slots */
    int64_t max_blocks; /* 64-row blocks when every local expert's segment is padded to 64 */
    float limit;
    int pull_warps, fan_out, comm_sms, sm_margin; /* CUDA: as configured, then as chosen */
} fy_shape;

struct ferry_layer {
    ferry_comm *comm;
    fy_shape shape;
    ferry_plan plan;
    int32_t *expert_rank;  /* [E] */
    int32_t *expert_local; /* [E] index among its rank's experts */
    int32_t *local_expert; /* [local_experts] ids of this rank's experts, ascending */
    ferry_report report;   /* pending; status FERRY_OK when none */
    ferry_stats stats;
    int64_t forwards; /* forward calls so far: stamps the ring and contexts */
    void *state;      /* the backend's */
};

typedef enum fy_context_phase { FY_CONTEXT_EMPTY, FY_CONTEXT_FILLED } fy_context_phase;

struct ferry_context {
    ferry_layer *layer;
    fy_context_phase phase;
    int64_t forward;       /* number of the forward that filled it */
    int64_t tokens;        /* N of that forward, where the host knows it (CPU) */
    unsigned char *memory; /* plan.context_memory_bytes */
    int owned;
    void *state; /* the backend's */
};

/* A backend. `layer_create` runs on every rank and must be collective-safe: it returns a status that all agree on. */
typedef struct fy_backend {
    const char *name;
    int64_t record_bytes; /* of what a rank tells every other about its call, beside tables of experts and slots */
    /* The kind of processor or device that the ranks' products run on, for tune files. */
    void (*machine)(const ferry_comm *comm, char *to, size_t room);
    /* Chooses what of `shape` is left to the rule, and fills the byte counts and chosen numbers of `plan`. Pure.
     * `comm_workers` and `compute_workers` as of ferry_layer_plan, which may leave them to the rule. */
    ferry_status (*plan)(fy_shape *shape, int comm_workers, int compute_workers, ferry_plan *plan);
    ferry_status (*comm_create)(ferry_comm *comm);
    void (*comm_destroy)(ferry_comm *comm);
    ferry_status (*layer_create)(ferry_layer *layer);
    void (*layer_destroy)(ferry_layer *layer);
    /* Gives the context memory of plan.context_memory_bytes where it is `owned`; destroy takes that back. */
    ferry_status (*context_create)(ferry_context *context);
    void (*context_destroy)(ferry_context *context);
    /* Optional: brings `report` and `stats` of finished calls up to date, without blocking. */
    void (*refresh)(ferry_layer *layer);
    ferry_status (*forward)(ferry_layer *layer, const ferry_forward_args *args);
    ferry_status (*backward)(ferry_layer *layer, const ferry_backward_args *args);
    /* Symmetric memory for callers; NULL: that of the communicator (comm/symmetric.c). Arguments have been checked. */
    ferry_status (*sym_alloc)(ferry_comm *comm, size_t bytes, void **memory);
    void (*sym_free)(ferry_comm *comm, void *memory);
    ferry_status (*sym_peer)(ferry_comm *comm, const void *memory, int rank, void **peer);
} fy_backend;

/* Whether the caller gave these matrices. */
static inline int fy_present(const ferry_matrices *m) { return m->base != NULL || m->table != NULL; }

extern const fy_backend fy_backend_cpu;
/* The CUDA backend registers here when it was built; NULL otherwise. */
extern const fy_backend *const fy_backend_cuda;
const fy_backend *fy_backend_of(ferry_backend backend);

#endif
