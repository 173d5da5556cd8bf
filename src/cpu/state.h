/* SPDX-License-Identifier: Apache-2.0 */
/* What the roles of a CPU call share: the layer's buffers, the call's work lists and its counters. */
#ifndef FERRY_CPU_STATE_H
#define FERRY_CPU_STATE_H

#include "core/layer.h"
#include "cpu/layout.h"
#include "cpu/product.h"
#include "rules/walk.h"

#include <stdatomic.h>

/* Which slot of which rank a row is: slot = token * K + k there. Those of padding rows are never read. */
typedef struct fy_row {
    int32_t source, slot;
} fy_row;

/* What a rank tells the others at the start of a call. Double-buffered: a rank may be a call ahead. */
typedef struct fy_published {
    _Atomic uint64_t call; /* released last: the call that everything else here, and the tables, belong to */
    int64_t kind;          /* 0 forward, else the backward's parts: must agree */
    int64_t forward;       /* the forward that this call is or belongs to: must agree */
    int64_t tokens;        /* N as given, also when it is out of range */
    int64_t bad_ids, bad_token, bad_slot, bad_id;
    _Atomic uint64_t done;           /* weight part alone: the call whose rows this rank needs no more */
    int64_t x_block, x_offset;       /* where x is: -1 staged, else the number of the symmetric block */
    int64_t dout_block, dout_offset; /* likewise */
    int64_t x_stride, dout_stride;   /* elements */
} fy_published;

/* Typed views of a schedule, in a context or in the layer's tables. */
typedef struct fy_schedule {
    int64_t *tokens, *rows, *first_block, *source_base;
    fy_row *row;
    int32_t *leader; /* the first row in walk order of the same token in the same macrobatch; itself: pull it */
    int32_t *ids;
    float *weights;
} fy_schedule;

/* Consecutive rows of one expert inside one step (or all own tokens, for the shared expert). */
typedef struct fy_piece {
    int64_t first; /* padded row; 0 for the shared expert */
    int32_t rows;
    int32_t expert; /* local; -1: the shared expert */
    int32_t step;
    int8_t saved;   /* x, g, u are in the context */
    int8_t missing; /* backward: neither the context nor the ring has x, g, u: pull and compute again */
} fy_piece;

/* A step's pieces, how many units each stage of it has, and how many are done. */
typedef struct fy_step {
    int32_t macrobatch;
    int32_t first_piece, pieces;
    int32_t before;                  /* the step that used the same ring rows before, or -1 */
    int32_t macro_first;             /* the first step of its macrobatch */
    int32_t first_segment, segments; /* backward: segments that read this step's rows */
    uint32_t remake_units, make_units, finish_units;
    _Atomic uint32_t pulled, remade, made, finished, pushed;
} fy_step;

/* Backward: the rows of one expert inside one macrobatch: the depth of one link of its weight-gradient chains. */
typedef struct fy_segment {
    int32_t expert; /* local; -1: the shared expert */
    int32_t first_piece, pieces;
    int32_t first_step, last_step;
    int32_t before; /* the segment that used the area of open sums before this one, or -1: this one does not use it */
    int8_t opens, closes; /* opens: the chain's sums come from that area; not closes: they go there */
    uint32_t units;
    _Atomic uint32_t done;
} fy_segment;

typedef enum fy_work {
    FY_WORK_MAKE,   /* forward: gate + up, SwiGLU -> h (and g, u) */
    FY_WORK_REMAKE, /* backward: gate + up again -> g, u */
    FY_WORK_GRAD,   /* backward: dh, SwiGLU gradient -> dg, du, w h', dweights */
    FY_WORK_DOWN,   /* forward: down -> y */
    FY_WORK_DX,     /* backward: dg Wg + du Wu -> dx */
    FY_WORK_WEIGHT  /* backward: weight gradients of a segment */
} fy_work;

/* Tickets [first_ticket, first_ticket + row_tiles * column_tiles): the tiles of one product. */
typedef struct fy_group {
    fy_work work;
    int32_t index; /* piece, or segment for FY_WORK_WEIGHT */
    int64_t first_ticket;
    int32_t row_tiles, column_tiles;
} fy_group;

typedef struct fy_cpu_layer {
    fy_layout layout;
    const fy_kernels *kernels;
    fy_symmetric *symmetric;
    unsigned char *ring, *table;
    uint64_t calls;       /* on this layer: the epoch of its flags */
    int64_t ring_forward; /* the forward whose macrobatch 0 the ring holds (x, g, u), or 0 */
} fy_cpu_layer;

/* One call in progress on this rank. */
typedef struct fy_call {
    ferry_layer *layer;
    fy_cpu_layer *state;
    ferry_comm *comm;
    ferry_context *context; /* NULL: forward without one */
    const fy_shape *shape;
    const fy_kernels *kernels;
    int backward;
    int parts;         /* backward: FERRY_BACKWARD_* */
    int keep;          /* forward: g and u are kept, in the context or in the ring */
    int remake_shared; /* backward: g, u of the shared expert were not saved */
    uint64_t number;
    int parity;
    int64_t tokens; /* N */
    const ferry_weights *params;
    const ferry_gradients *grads;
    const uint16_t *x; /* own x: staged, symmetric or the context's */
    int64_t x_stride;
    const uint16_t *dout; /* own dout: staged or symmetric */
    int64_t dout_stride;
    uint16_t *out; /* out or dx */
    int64_t out_stride;
    float *dweights;
    uint32_t *ready; /* backward: the caller's words of local experts, or NULL */
    uint32_t ready_value;
    fy_schedule schedule;
    fy_walk walk;
    int64_t steps, pieces, segments, groups, tickets;
    fy_step *step;
    fy_piece *piece;
    fy_segment *segment;
    fy_group *group;
    fy_piece shared; /* all own tokens */
    fy_segment shared_segment;
    uint32_t shared_make_units, shared_finish_units, shared_remake_units;
    _Atomic uint32_t shared_remade, shared_made, shared_finished;
    _Atomic int64_t next_ticket, next_pull, next_push, next_sum, pulls_done, pushes_done, sums_done;
    int64_t sum_units;
    _Atomic int64_t pulls, bytes_pull, bytes_pull_remote, bytes_push, bytes_push_remote, bytes_sum, flop, remade_rows;
} fy_call;

/* ---- Places ---- */
static inline unsigned char *fy_peer(const fy_call *call, int rank, int64_t offset) {
    return call->state->symmetric->base[rank] + offset;
}
static inline unsigned char *fy_own(const fy_call *call, int64_t offset) {
    return fy_peer(call, call->shape->rank, offset);
}
static inline unsigned char *fy_ring(const fy_call *call, int64_t offset) { return call->state->ring + offset; }
static inline unsigned char *fy_table(const fy_call *call, int64_t offset) { return call->state->table + offset; }

/* Where x, g, u of a padded row are: in the context when it saves that row, else in the ring. */
static inline int fy_is_saved(const fy_call *call, int64_t row) {
    return call->context != NULL && row < call->shape->context_rows;
}
static inline uint16_t *fy_row_at(const fy_call *call, int64_t row, int64_t saved_at, int64_t ring_at, int64_t width) {
    if (fy_is_saved(call, row)) return (uint16_t *)(call->context->memory + saved_at) + row * width;
    return (uint16_t *)fy_ring(call, ring_at) + fy_ring_row(row, call->shape->ring_rows) * width;
}
static inline uint16_t *fy_ring_row_at(const fy_call *call, int64_t row, int64_t ring_at, int64_t width) {
    return (uint16_t *)fy_ring(call, ring_at) + fy_ring_row(row, call->shape->ring_rows) * width;
}

fy_schedule fy_schedule_at(const fy_schedule_layout *layout, unsigned char *memory);

/* ---- Waiting inside a call (wait.c) ---- */
/* Waits until *flag >= target; the deadline starts anew whenever any rank makes progress. `worker` for the observer. */
ferry_status fy_call_wait(fy_call *call, int worker, _Atomic uint32_t *flag, uint32_t target, ferry_phase phase,
                          int64_t step, const char *what);
/* One turn of a wait for something that the caller polls itself. */
typedef struct fy_call_poll {
    fy_wait wait;
    uint64_t progress;
} fy_call_poll;
void fy_call_poll_begin(fy_call_poll *poll, fy_call *call, ferry_phase phase, int awaited_rank, const char *what);
ferry_status fy_call_poll_turn(fy_call_poll *poll, fy_call *call, int64_t expected, int64_t seen);
/* Tells the observer that a unit begins; non-zero: the worker is to leave. */
int fy_call_begin(fy_call *call, int worker, ferry_phase phase, int64_t step, const char *what);
/* A unit was done: tells the observer, and whoever waits for this rank starts its deadline anew. */
void fy_call_end(fy_call *call, int worker, ferry_phase phase, int64_t step, const char *what);

/* ---- Roles ---- */
enum { FY_SUM_TOKENS = 16 }; /* own tokens of one sum unit */
ferry_status fy_role_schedule_forward(fy_call *call, const ferry_forward_args *args);
ferry_status fy_role_schedule_backward(fy_call *call, const ferry_backward_args *args);
/* The end of a call that pushes nothing: returns when no rank needs this one's rows any more. */
ferry_status fy_role_schedule_part(fy_call *call);
void fy_build_work(fy_call *call);

/* One unit, if one is ready: 1 it was done, 0 none was ready, -1 the worker leaves (fault or observer). */
int fy_role_pull(fy_call *call, int worker);
int fy_role_push(fy_call *call, int worker);
int fy_role_sum(fy_call *call, int worker, void *scratch);
/* Where no gradients of experts are wanted, all of them are ready. */
void fy_ready_unwanted(fy_call *call);
/* Runs tickets until none are left. 0, or -1 to leave. */
int fy_role_compute(fy_call *call, int worker, void *scratch);
/* Pulls, pushes and sums until none are left. 0, or -1 to leave. */
int fy_role_comm(fy_call *call, int worker, void *scratch);
/* A slot whose result the next sum still misses, or -1. */
int64_t fy_role_sum_missing(fy_call *call);

#endif
