/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ferry: an expert-parallel Mixture-of-Experts layer, forward and backward.
 *
 * For token t with slots k = 0..K-1 (expert e = ids[t][k], weight w = weights[t][k]):
 *
 *     g = x[t] Wg[e]^T      u = x[t] Wu[e]^T      h = silu(g) * u      y_k = h Wd[e]^T
 *     out[t] = shared(x[t]) + sum over k of w * y_k
 *
 * Shapes      N tokens on this rank in this call, K slots per token, H hidden size, I intermediate size of an
 *             expert, S intermediate size of the shared expert (0: none), E experts over all R ranks.
 *             All matrices are row-major with the last dimension contiguous.
 * Dtypes      x, out, dout, dx and weights of experts are BF16; router weights and their gradients are F32;
 *             ids are I32 or I64; weight gradients are F32 or BF16. Products accumulate in F32.
 * Ownership   Ferry never keeps a caller's tensor after a call, and never frees one. A context holds copies.
 * Collective  A function marked collective is called by every rank of the communicator, in one order on all of
 *             them. Every `destroy` is local, never blocks on a peer, and accepts NULL.
 * Streams     On a CUDA communicator a call enqueues on `stream` and returns; pointers are device pointers. On a
 *             CPU communicator `stream` is ignored and a call returns when its work is done.
 * Threads     One communicator is used by one thread at a time. Different communicators are independent.
 * Errors      Every function that can fail returns a ferry_status; ferry_last_error() has the sentence: what, where,
 *             expected, got, what to do. Handles and output arguments are written only on success.
 * Same bits   The same inputs give the same bits over runs, worker counts, minibatch and ring sizes, saved or
 *             recomputed contexts, threads or processes, instruction sets, and R when the same global batch is
 *             split into contiguous token blocks in rank order. (Gradients of the shared expert are sums over
 *             this rank's tokens only, so they depend on the split.)
 *
 * C99 and C++ may include this file.
 */
#ifndef FERRY_H
#define FERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRY_VERSION_MAJOR 0
#define FERRY_VERSION_MINOR 1
#define FERRY_VERSION_PATCH 0

#if defined(__GNUC__)
#define FERRY_API __attribute__((visibility("default")))
#else
#define FERRY_API
#endif

/* ---- Status ------------------------------------------------------------------------------------------------- */

/* One list gives the enumerators, their names and their one-line texts. Numbers are stable; gaps are for later. */
#define FERRY_STATUS_MAP(X)                                                                                            \
    X(OK, 0, "success")                                                                                                \
    X(E_INVALID, 10, "an argument is not valid")                                                                       \
    X(E_UNSUPPORTED, 11, "valid, but this build or backend cannot do it")                                              \
    X(E_MISMATCH, 12, "ranks disagree about a collective call")                                                        \
    X(E_STATE, 13, "the object is not in a state that allows this call")                                               \
    X(E_MEMORY, 20, "memory could not be had")                                                                         \
    X(E_SYSTEM, 21, "an operating system call failed")                                                                 \
    X(E_CUDA, 22, "a CUDA call failed")                                                                                \
    X(E_BAD_ID, 30, "expert ids out of range were treated as -1; the work was done")                                   \
    X(E_TOO_MANY_TOKENS, 31, "a rank passed more tokens than max_tokens; the call did nothing on any rank")            \
    X(E_TIMEOUT, 40, "a wait passed its deadline")                                                                     \
    X(E_PEER, 41, "a peer died or failed")                                                                             \
    X(E_INTERNAL, 90, "a bug in Ferry")

typedef enum ferry_status {
#define FERRY_STATUS_ENUM(name, number, text) FERRY_##name = number,
    FERRY_STATUS_MAP(FERRY_STATUS_ENUM)
#undef FERRY_STATUS_ENUM
        FERRY_STATUS_FORCE_INT = 0x7fffffff
} ferry_status;

/* "FERRY_E_TIMEOUT" and so on; never NULL. */
FERRY_API const char *ferry_status_name(ferry_status status);
/* The one-line text of the map above; never NULL. */
FERRY_API const char *ferry_status_text(ferry_status status);
/* The sentence of the last failure in this thread; "" if there was none. Valid until the thread's next failure. */
FERRY_API const char *ferry_last_error(void);
/* "0.1.0"; the number is major * 10000 + minor * 100 + patch. */
FERRY_API const char *ferry_version(void);
FERRY_API int ferry_version_number(void);

/* ---- Common types ------------------------------------------------------------------------------------------- */

typedef enum ferry_dtype {
    FERRY_BF16 = 1,
    FERRY_F32 = 2,
    FERRY_F16 = 3, /* named so that it can be refused by name */
    FERRY_F64 = 4, /* likewise */
    FERRY_I32 = 10,
    FERRY_I64 = 11
} ferry_dtype;

typedef enum ferry_backend { FERRY_CPU = 0, FERRY_CUDA = 1 } ferry_backend;

/* CPU instruction sets; AUTO takes the widest that the processor has. All give the same bits. */
typedef enum ferry_isa {
    FERRY_ISA_AUTO = 0,
    FERRY_ISA_PORTABLE = 1,
    FERRY_ISA_AVX2 = 2,
    FERRY_ISA_AVX512 = 3
} ferry_isa;

/* Reserved for later precisions and faster orders; 0 is the only value that is accepted today. */
typedef enum ferry_precision { FERRY_PRECISION_BF16 = 0 } ferry_precision;
typedef enum ferry_order { FERRY_ORDER_EXACT = 0 } ferry_order;

/* All of the library's own memory goes through these. `alloc` returns memory aligned to at least `align` bytes, or
 * NULL. Where ranks are threads of one process, the functions are thread-safe and outlive every communicator of the
 * group: the last rank to let go of a symmetric block frees it. */
typedef struct ferry_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} ferry_allocator;

/*
 * One matrix per local expert, in the order of local experts. Element (row, column) of local expert e is at
 *     base + e * expert_stride + row * row_stride + column          when `table` is NULL, or at
 *     table[e] + row * row_stride + column                          otherwise.
 * Strides are in elements. So a fused [E, 2I, H] tensor is two of these with the same expert_stride.
 * A `ferry_matrices` whose base and table are both NULL is absent.
 */
typedef struct ferry_matrices {
    void *base;
    void *const *table;
    int64_t expert_stride;
    int64_t row_stride;
    ferry_dtype dtype;
} ferry_matrices;

/* ---- Bootstrap ---------------------------------------------------------------------------------------------- */

/*
 * How the ranks of a communicator find each other: an all-gather of `bytes` bytes from every rank into
 * `all` [nranks * bytes], in rank order. Returns 0 on success. Called only during collective `create` calls.
 * The caller keeps `user` alive until the communicator is destroyed. At most 256 ranks. An all-gather that fails on one
 * rank must fail, or time out, on all.
 */
typedef struct ferry_bootstrap {
    int rank;
    int nranks;
    int (*allgather)(void *user, const void *mine, void *all, size_t bytes);
    void *user;
    int same_process; /* 1: the ranks are threads of this process; 0: they are processes of one machine */
} ferry_bootstrap;

/* Ranks as threads of one process: make one group, give every thread its bootstrap. Outlives its communicators. */
typedef struct ferry_thread_group ferry_thread_group;
FERRY_API ferry_status ferry_thread_group_create(int nranks, ferry_thread_group **group);
FERRY_API void ferry_thread_group_destroy(ferry_thread_group *group);
FERRY_API ferry_status ferry_thread_group_bootstrap(ferry_thread_group *group, int rank, ferry_bootstrap *bootstrap);

/*
 * Ranks as processes of one machine, found through the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR
 * and MASTER_PORT (FERRY_JOB, when set, names the job instead of the last two). Collective; waits for all peers up
 * to `timeout_s` seconds (<= 0: 600). Release it after the communicators that use it.
 */
typedef struct ferry_env_bootstrap ferry_env_bootstrap;
FERRY_API ferry_status ferry_env_bootstrap_create(double timeout_s, ferry_env_bootstrap **env,
                                                  ferry_bootstrap *bootstrap);
FERRY_API void ferry_env_bootstrap_destroy(ferry_env_bootstrap *env);

/* ---- Observer ----------------------------------------------------------------------------------------------- */

/* The phases of a call, in the order in which a row passes through them. */
#define FERRY_PHASE_MAP(X) X(SCHEDULE, schedule) X(PULL, pull) X(COMPUTE, compute) X(PUSH, push) X(SUM, sum)
typedef enum ferry_phase {
#define FERRY_PHASE_ENUM(NAME, name) FERRY_PHASE_##NAME,
    FERRY_PHASE_MAP(FERRY_PHASE_ENUM)
#undef FERRY_PHASE_ENUM
        FERRY_PHASE_COUNT
} ferry_phase;

/* One unit of work of one worker begins or ends (or a wait does). */
typedef struct ferry_event {
    ferry_phase phase;
    int begin;        /* 1 begin, 0 end */
    int wait;         /* 1: the worker waits; 0: it works */
    int backward;     /* 1 in a backward call */
    int rank;         /* of the communicator */
    int worker;       /* CPU: communication workers first, then compute workers; -1: the calling thread. CUDA:
                         FERRY_SM_WORKERS for each multiprocessor, see below; -1: the schedule's launches */
    int macrobatch;   /* index in canonical row order; -1 where it has no meaning */
    int step;         /* minibatch number in the order of the walk; -1 likewise */
    const char *what; /* static text: the kind of unit, for people */
    int64_t time_ns;  /* CPU: CLOCK_MONOTONIC. CUDA: the device's own clock; ranks on other devices have others, but the
                         wait for peers at the head of a call ends at one moment on all of them */
    int64_t lost;     /* CUDA: units of this worker that found no room in the call's buffer; in its last event */
} ferry_event;

/* Workers of a multiprocessor: 0 feeds operands, 1 chooses tickets and, in a forward, signals what is stored, 2 and 3
 * pull rows, and all of these then sum; 4 and 5 multiply, push and then sum (of their four warps, the first one's
 * sums). */
enum { FERRY_SM_WORKERS = 6 };

/*
 * For timelines, and, on the CPU, for tests that slow, stop or kill a worker.
 * CPU: called from worker threads. A return value other than 0 at a `begin` makes that worker leave the call at once
 * and silently, as a crashed thread would.
 * CUDA: the kernels keep the times, so a call returns when its work is done, and its thread then calls this for all
 * events, worker by worker, each worker's in order; what it returns is ignored. A call that is captured into a graph is
 * not observed.
 */
typedef struct ferry_observer {
    int (*event)(void *user, const ferry_event *event);
    void *user;
} ferry_observer;

/* ---- Communicator ------------------------------------------------------------------------------------------- */

typedef struct ferry_comm ferry_comm;

typedef struct ferry_comm_config {
    size_t size; /* sizeof(ferry_comm_config): set by ferry_comm_config_init */
    ferry_backend backend;
    ferry_bootstrap bootstrap;
    int device;                /* CUDA device; ignored on the CPU */
    int comm_workers;          /* CPU: threads that pull, push and sum, at most 64; 0: 1. CUDA: ignored */
    int compute_workers;       /* CPU: threads that multiply, at most 64; 0: processors / ranks on this machine, at
                                  least 1. CUDA: multiprocessors of this rank; 0: the device's, shared out over the
                                  ranks that use it, which is also the most */
    ferry_isa isa;             /* CPU */
    double enter_timeout_s;    /* for a peer to enter the same call; 0: 600 */
    double progress_timeout_s; /* for progress inside a call; 0: 60 */
    ferry_allocator allocator; /* alloc == NULL: the C library */
    ferry_observer observer;   /* event == NULL: none */
} ferry_comm_config;

FERRY_API void ferry_comm_config_init(ferry_comm_config *config);
/* Collective. Fails with E_MISMATCH on every rank when ranks disagree about backend, version or kind. */
FERRY_API ferry_status ferry_comm_create(const ferry_comm_config *config, ferry_comm **comm);
/* Layers, contexts and symmetric allocations of the communicator must be gone before it. */
FERRY_API void ferry_comm_destroy(ferry_comm *comm);
/* The error that ended the communicator (timeout, dead peer), or FERRY_OK. After one it can only be destroyed. */
FERRY_API ferry_status ferry_comm_error(ferry_comm *comm);
FERRY_API int ferry_comm_rank(const ferry_comm *comm);
FERRY_API int ferry_comm_size(const ferry_comm *comm);

/*
 * Collective. Memory at the same offset on every rank that peers can reach, zeroed, aligned to 256 bytes; `bytes`
 * is equal on all ranks. A forward whose x (or a backward whose dout) lies in such memory skips the staging copy.
 * CUDA: on the communicator's device, and tokens are staged all the same; ferry_sym_free waits for this rank's calls in
 * flight.
 */
FERRY_API ferry_status ferry_sym_alloc(ferry_comm *comm, size_t bytes, void **memory);
FERRY_API void ferry_sym_free(ferry_comm *comm, void *memory);
/* Where this process sees `rank`'s part of symmetric memory: *peer corresponds to `memory`, which may point inside. */
FERRY_API ferry_status ferry_sym_peer(ferry_comm *comm, const void *memory, int rank, void **peer);
/* Collective. Returns when every rank has called it; what ranks wrote to symmetric memory before is then visible to
 * all. Waits up to the entering deadline. On CUDA it orders the host side only. */
FERRY_API ferry_status ferry_barrier(ferry_comm *comm);

/* ---- Layer -------------------------------------------------------------------------------------------------- */

typedef struct ferry_layer ferry_layer;

typedef struct ferry_layer_config {
    size_t size;                /* set by ferry_layer_config_init */
    int64_t hidden;             /* H >= 1 */
    int64_t intermediate;       /* I >= 1 */
    int64_t shared;             /* S >= 0 */
    int64_t experts;            /* E >= 1, over all ranks */
    int64_t slots;              /* K >= 1 */
    int64_t max_tokens;         /* most tokens that this rank passes in a call, >= 0; equal on all ranks */
    const int32_t *expert_rank; /* [E] rank of each expert, or NULL: contiguous, the first E mod R ranks one more.
                                   Local experts are ordered by expert id. Read during create only. */
    float swiglu_limit;         /* L > 0: g = min(g, L), u = min(max(u, -L), L), no gradient where clamped; 0: none */
    int64_t minibatch_rows;     /* 0: by rule; rounded up to a multiple of 64, at most the ring */
    int64_t ring_rows;          /* 0: by rule; rounded up to a multiple of 64 */
    int64_t context_rows;       /* rows of x, g, u that a context saves; -1: by rule (2 x the balanced share);
                                   0: none, backward recomputes everything. Rounded up to a multiple of 64. */
    ferry_precision precision;
    ferry_order order;
    int64_t max_bytes; /* 0: no limit; else create fails with E_MEMORY, saying how much is short, before it
                          allocates anything when layer_bytes of this rank's plan is larger */
    /* How the work is done, never what comes out; ranks may differ in the next four. CUDA, ignored on the CPU. */
    int pull_warps; /* of each multiprocessor, 1..3; 0: by rule. It has two to spare: 3 is taken as 2 */
    int fan_out;    /* 1: a token's row is pulled once for all its rows here, 2: once for each of them; 0: by rule */
    int comm_sms;   /* multiprocessors that pull and sum and do nothing else; 0: none */
    int sm_margin;  /* multiprocessors that calls leave free, for kernels that run beside them (a collective's); 0: none
                     */
    /* What `ferry tune` has measured, for what is left to the rules above: minibatch_rows, pull_warps, fan_out,
     * comm_sms and, on the CPU where the communicator's workers are left to the rule too, how many of them communicate.
     * NULL: the file $FERRY_TUNE_FILE, else $XDG_CACHE_HOME/ferry/tune, else $HOME/.cache/ferry/tune; "": none. A file
     * that is not there, or lines in it that are no entries, are no error. Read during create, by rank 0 for all ranks.
     */
    const char *tune_file;
} ferry_layer_config;

/* What a layer allocates on one rank, and the sizes that the rules chose. Bytes are exact. */
typedef struct ferry_plan {
    size_t size;
    int64_t local_experts; /* of the rank asked about */
    int64_t minibatch_rows;
    int64_t ring_rows;
    int64_t context_rows;
    int64_t max_rows;             /* most rows that routing can send here */
    int64_t symmetric_bytes;      /* reachable by peers: tables, staged x and dout, y and dx slots, flags */
    int64_t ring_bytes;           /* row buffers of one macrobatch */
    int64_t table_bytes;          /* row tables, counters, scratch of workers */
    int64_t layer_bytes;          /* symmetric + ring + table */
    int64_t context_bytes;        /* each context: its memory and its handle */
    int64_t context_memory_bytes; /* its memory alone: what the caller provides, if he does */
    /* CUDA, 0 on the CPU: what the rank's calls use. */
    int multiprocessors; /* in all: those of the rank without sm_margin */
    int pull_warps;      /* 1 or 2 */
    int fan_out;         /* 1 or 2 */
    int comm_sms;
    int comm_workers; /* CPU: workers that communicate alone; 0 on CUDA */
    int tuned;        /* FERRY_TUNED_*: what came from the tune file */
} ferry_plan;

enum {
    FERRY_TUNED_MINIBATCH_ROWS = 1,
    FERRY_TUNED_PULL_WARPS = 2,
    FERRY_TUNED_FAN_OUT = 4,
    FERRY_TUNED_COMM_SMS = 8,
    FERRY_TUNED_COMM_WORKERS = 16
};

FERRY_API void ferry_layer_config_init(ferry_layer_config *config);
/*
 * Local, and needs no device: the plan of `rank` in a group of `nranks` whose communicators have the given numbers of
 * workers. CPU: comm_workers and compute_workers >= 1. CUDA: comm_workers are pulling warps where config.pull_warps is
 * 0 (0: by rule), compute_workers multiprocessors of the rank (0: 132, one whole H200). No tune file is read: the plan
 * is that of a layer with tune_file "". E_UNSUPPORTED when this build has not the backend, or that cannot do the shape.
 */
FERRY_API ferry_status ferry_layer_plan(const ferry_layer_config *config, ferry_backend backend, int rank, int nranks,
                                        int comm_workers, int compute_workers, ferry_plan *plan);
/* Collective. E_MISMATCH on every rank when H, I, S, E, K, max_tokens, limit, rows or the expert map differ. */
FERRY_API ferry_status ferry_layer_create(ferry_comm *comm, const ferry_layer_config *config, ferry_layer **layer);
FERRY_API void ferry_layer_destroy(ferry_layer *layer);
FERRY_API ferry_status ferry_layer_get_plan(const ferry_layer *layer, ferry_plan *plan);

/* Local experts of `rank`: their number, and the id of local expert `index`. -1 when out of range. */
FERRY_API int64_t ferry_layer_local_experts(const ferry_layer *layer, int rank);
FERRY_API int64_t ferry_layer_expert_id(const ferry_layer *layer, int rank, int64_t index);

/*
 * What a forward leaves for its backward: copies of x (on CUDA where some rank may want it again), ids and router
 * weights, the schedule, and x, g, u of the first context_rows rows in canonical order (and, unless that is 0, g and u
 * of the shared expert). `memory` (of plan.context_memory_bytes, aligned to 256) may be the caller's, who then keeps it
 * alive; NULL: the layer allocates it. A context may be used again after its backward, or destroyed without one.
 * Several may be in flight, their backwards in any order. Destroy before the layer.
 *
 * ferry_context_clear: the context holds nothing, as one just made. A forward that is refused leaves what is there, so
 * a caller who gives the memory to others between two forwards clears the context. Local, beside calls in flight; NULL
 * is allowed.
 */
typedef struct ferry_context ferry_context;
FERRY_API ferry_status ferry_context_create(ferry_layer *layer, void *memory, ferry_context **context);
FERRY_API void ferry_context_clear(ferry_context *context);
FERRY_API void ferry_context_destroy(ferry_context *context);

/* gate, up: [I, H] per local expert; down: [H, I]. shared_*: one matrix each, [S, H], [S, H], [H, S]; BF16. */
typedef struct ferry_weights {
    ferry_matrices gate, up, down;
    ferry_matrices shared_gate, shared_up, shared_down;
} ferry_weights;

/* Where a weight gradient goes: grad = round(beta * old + sum); beta 0 never reads old, so it may hold NaN. Absent:
 * skipped. */
typedef struct ferry_gradient {
    ferry_matrices to; /* F32 or BF16, shaped like its weight */
    float beta;        /* 0 or 1 */
} ferry_gradient;

typedef struct ferry_gradients {
    ferry_gradient gate, up, down;
    ferry_gradient shared_gate, shared_up, shared_down;
} ferry_gradients;

/* How evenly a forward's rows fall on experts and ranks, over all ranks and equal on all of them. */
typedef struct ferry_load {
    int64_t rows;           /* of all experts: slots of all ranks that have one */
    int64_t busiest_rows;   /* of the rank whose experts receive most */
    int32_t busiest_rank;   /* that rank; the lowest of equals */
    int32_t busiest_expert; /* the expert that receives most rows; the lowest of equals */
    float overload;         /* busiest rank / mean rank; 1: even; 0 when there are no rows */
    float expert_overload;  /* busiest expert / mean expert; likewise */
    int32_t empty_experts;  /* experts without rows */
    int32_t spare;          /* 0 */
    int32_t histogram[16];  /* [i]: experts with i/4 to (i + 1)/4 of the mean expert's rows; [15]: 15/4 and more */
} ferry_load;

typedef struct ferry_forward_args {
    size_t size;               /* set by ferry_forward_args_init */
    const int32_t *num_tokens; /* N, 0..max_tokens; host or device pointer, read in stream order */
    const void *x;             /* [N, H] BF16; on the CPU this, ids, weights and out may be NULL when N is 0 */
    int64_t x_stride;          /* elements between tokens; 0: H */
    const void *ids;           /* [N, K] I32 or I64, contiguous; -1: no expert, its weight is never read */
    ferry_dtype ids_dtype;
    const float *weights;   /* [N, K] F32, contiguous */
    ferry_weights params;   /* read */
    void *out;              /* [N, H] BF16 */
    int64_t out_stride;     /* elements between tokens; 0: H */
    ferry_context *context; /* NULL: no backward will follow */
    void *stream;
    /* Written by the call, in stream order; on the communicator's device, on the CPU host memory. NULL: not wanted.
     * Not written by a call that does nothing (E_TOO_MANY_TOKENS). */
    int32_t *expert_rows; /* [E] rows that each expert receives from all ranks; equal on all ranks */
    ferry_load *load;     /* one, aligned to 8 */
} ferry_forward_args;

/*
 * Collective. Returns E_BAD_ID (on every rank; the work is done) or E_TOO_MANY_TOKENS (on every rank; nothing is
 * done) with the communicator still usable. On CUDA such reports come from poll or from the next call.
 */
FERRY_API void ferry_forward_args_init(ferry_forward_args *args);
FERRY_API ferry_status ferry_forward(ferry_layer *layer, const ferry_forward_args *args);

enum { FERRY_BACKWARD_DATA = 1, FERRY_BACKWARD_WEIGHT = 2, FERRY_BACKWARD_ALL = 3 };

typedef struct ferry_backward_args {
    size_t size;            /* set by ferry_backward_args_init */
    ferry_context *context; /* filled by a forward of the same layer */
    int parts;              /* DATA: dx, dweights; WEIGHT: gradients; ALL: both. Equal on all ranks. */
    const void *dout;       /* [N, H] BF16; the same values in both parts */
    int64_t dout_stride;    /* elements between tokens; 0: H */
    ferry_weights params;   /* the forward's values */
    void *dx;               /* [N, H] BF16, written */
    int64_t dx_stride;
    float *dweights; /* [N, K] F32, written; 0 where the id is -1; NULL skips */
    ferry_gradients grads;
    void *stream;
    /* NULL, or [local experts] words on the communicator's device, on the CPU host memory: word e becomes ready_value
     * once all wanted weight gradients of local expert e are written (a release to the whole system), those of experts
     * without rows too. So a stream that waits for the word (cuStreamWaitValue32), or a thread that reads it, may use
     * them while the call goes on. A call without FERRY_BACKWARD_WEIGHT leaves the words alone. */
    uint32_t *ready;
    uint32_t ready_value;
} ferry_backward_args;

FERRY_API void ferry_backward_args_init(ferry_backward_args *args);
/* Collective: also for ranks with no tokens or no rows (their gradients are zeros, not missing). */
FERRY_API ferry_status ferry_backward(ferry_layer *layer, const ferry_backward_args *args);

/* Details of the last E_BAD_ID or E_TOO_MANY_TOKENS. Written whole; like every output structure it starts with its
 * size, which tells a program that was built with another version what it holds. */
typedef struct ferry_report {
    size_t size;
    ferry_status status;
    int64_t count; /* bad ids over all ranks; tokens that the rank passed */
    int rank;      /* where the first one is */
    int64_t token; /* within that rank; -1 for E_TOO_MANY_TOKENS */
    int64_t slot;  /* likewise */
    int64_t id;    /* the value found */
} ferry_report;

/* Never blocks. Returns the pending report's status and clears it; FERRY_OK when there is none. `report` may be NULL.
 */
FERRY_API ferry_status ferry_layer_poll(ferry_layer *layer, ferry_report *report);

/* Counters of this rank, of the last finished call; bytes count row data and what travels with it. */
typedef struct ferry_stats {
    size_t size;
    int64_t rows; /* rows that this rank's experts received */
    int64_t macrobatches;
    int64_t steps;                         /* minibatches */
    int64_t ring_high_water;               /* most ring rows in use */
    int64_t pulls;                         /* token rows read from their owners: one per token and macrobatch, on
                                              GPUs also one for each row of the first steps */
    int64_t recomputed_rows;               /* backward: rows whose g and u were computed again */
    int64_t bytes_schedule;                /* table bytes read from peers */
    int64_t bytes_pull, bytes_pull_remote; /* all; from other ranks */
    int64_t bytes_push, bytes_push_remote;
    int64_t bytes_sum;     /* read and written by weighted sums */
    int64_t flop;          /* of products of this rank */
    int64_t current_bytes; /* held now by the communicator's allocator and symmetric memory */
    int64_t peak_bytes;    /* most ever held */
} ferry_stats;

FERRY_API ferry_status ferry_layer_stats(ferry_layer *layer, ferry_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
