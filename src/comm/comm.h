/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator: who the ranks are, memory that they share, how they wait for each other, and how a fault of one
 * ends the waiting of all. The CPU backend reaches peers only through fy_symmetric and waits only through fy_wait_*;
 * the CUDA backend has memory and waits of its own on its devices.
 */
#ifndef FERRY_COMM_COMM_H
#define FERRY_COMM_COMM_H

#include "core/memory.h"
#include "core/status.h"

#include <pthread.h>
#include <stdatomic.h>

/* Most ranks of a communicator: what collective steps exchange then fits on a stack, so that a rank whose memory ran
 * out can still say so. */
enum { FY_MAX_RANKS = 256 };

/* Memory at one offset on every rank. base[r] is where this process sees the part of rank r. */
typedef struct fy_symmetric {
    unsigned char **base;      /* [nranks] */
    size_t bytes;              /* of one rank's part, rounded up to 256 */
    struct fy_symmetric *next; /* list of the communicator */
    int64_t number;            /* of its collective creation: names the block on every rank */
    /* below: of symmetric.c alone. Threads use each other's parts in place, so a rank's part and handle live until
     * the last rank has dropped its reference; hooks are copied because the owner's communicator may be gone then. */
    struct fy_symmetric **peers; /* [nranks] threads: the handles of all ranks */
    _Atomic int references;
    unsigned char *memory; /* this rank's part */
    ferry_allocator hooks;
    size_t handle_bytes;
} fy_symmetric;

/* What went wrong first; written once by the rank that found it, copied to every rank. Plain data, fixed size. */
typedef struct fy_fault {
    int32_t status;         /* ferry_status: E_TIMEOUT, E_PEER, ... */
    int32_t phase;          /* ferry_phase */
    int32_t waiting_rank;   /* who waited (who found it) */
    int32_t awaited_rank;   /* for whom */
    int64_t expected, seen; /* counts, where the wait had them; -1 otherwise */
    char what[96];          /* what was awaited, or what happened instead */
    double waited_s;        /* E_TIMEOUT: the deadline that passed */
} fy_fault;

struct ferry_comm {
    int rank, nranks;
    ferry_comm_config config; /* defaults filled in: workers, timeouts */
    int workers_by_rule;      /* the caller gave neither number */
    fy_memory memory;
    fy_symmetric *control;      /* first symmetric block: abort word, fault, heartbeat of every rank (control.c) */
    fy_symmetric *symmetric;    /* all living blocks, the newest first: control, layers', callers' */
    int64_t symmetric_made;     /* blocks ever made */
    struct fy_monitor *monitor; /* processes: the thread that notices dead peers (monitor.c); else NULL */
    void *backend;              /* the backend's own; NULL until it has started */
    uint64_t barriers;          /* ferry_barrier calls so far */
    pthread_mutex_t raise_lock; /* of fy_raise */
    int raised;                 /* this rank has written its fault records */
};

/* ---- Collective, through the bootstrap; for create calls only ---- */
/* all = nranks * bytes. E_PEER when the bootstrap's all-gather fails; a built-in bootstrap says its own status. */
ferry_status fy_allgather(ferry_comm *comm, const void *mine, void *all, size_t bytes);
/* Every rank passes its own outcome; if any rank's is not FERRY_OK, every rank fails: the failing ones with their
 * own status and sentence, the others with E_PEER naming the first failing rank and its status. */
ferry_status fy_agree(ferry_comm *comm, ferry_status mine, const char *doing);
/* The same two before there is a communicator. */
ferry_status fy_bootstrap_allgather(const ferry_bootstrap *bootstrap, const void *mine, void *all, size_t bytes);
ferry_status fy_bootstrap_agree(const ferry_bootstrap *bootstrap, ferry_status mine, const char *doing);
/* What a block of `bytes` per rank counts in comm->memory on each rank: its part, rounded up to 256, and the handle. */
size_t fy_symmetric_bytes(int nranks, size_t bytes);
/* Zeroed memory, posix_fallocate'd when the ranks are processes; agreed on by all ranks. Counted in comm->memory.
 * Aligned to 4096. `bytes` 0 counts as 1. E_MEMORY on every rank when one of them cannot get its part. */
ferry_status fy_symmetric_create(ferry_comm *comm, size_t bytes, const char *what, fy_symmetric **out);
/* Local; peers keep their own mappings alive as long as they need them (threads: reference counted, and freed through
 * the owner's hooks by the last rank, so hooks of ranks that are threads outlive all of their communicators). */
void fy_symmetric_destroy(ferry_comm *comm, fy_symmetric *block);
/* The living block of that number, or NULL. */
fy_symmetric *fy_symmetric_numbered(ferry_comm *comm, int64_t number);
/* The block that holds `pointer` .. `pointer + bytes` of this rank and its offset there, or NULL. */
fy_symmetric *fy_symmetric_find(ferry_comm *comm, const void *pointer, size_t bytes, size_t *offset);

/* ---- Waiting ---- */

/* A wait in progress; one per wait, on the stack. Names what is awaited, for the error. */
typedef struct fy_wait {
    ferry_comm *comm;
    ferry_phase phase; /* FERRY_PHASE_COUNT: outside a call */
    int awaited_rank;  /* may change from turn to turn */
    const char *what;
    double timeout_s; /* comm->config.enter_timeout_s or progress_timeout_s */
    /* below: of wait.c alone */
    int spins;
    int left_seen;     /* 1 + the awaited rank that had left at the turn before, or 0 */
    int64_t looked_ns; /* at the clock, last; 0: not yet */
    int64_t waited_ns; /* without the pauses of this process */
} fy_wait;

void fy_wait_begin(fy_wait *wait, ferry_comm *comm, ferry_phase phase, int awaited_rank, const char *what,
                   double timeout_s);
/* One turn of a polling loop: backs off (spin, yield, short sleep), tests the abort word, now and then the clock.
 * FERRY_OK: poll again. Otherwise the fault has been recorded and raised on all ranks, and the caller leaves. */
ferry_status fy_wait_turn(fy_wait *wait, int64_t expected, int64_t seen);
/* The common wait: until *flag (load-acquire) >= target. */
ferry_status fy_wait_at_least(ferry_comm *comm, _Atomic uint64_t *flag, uint64_t target, ferry_phase phase,
                              int awaited_rank, const char *what, double timeout_s);

/* ---- Faults ---- */
/* 1 once a fault was raised anywhere. One relaxed-then-acquire load of this rank's abort word. */
int fy_aborted(ferry_comm *comm);
/* Raises a fault on all ranks (the first one wins everywhere it has not been overtaken). Thread-safe. */
void fy_raise(ferry_comm *comm, const fy_fault *fault);
/* The communicator's fault as a failure: FERRY_OK when there is none, else status and sentence set in this thread. */
ferry_status fy_fault_status(ferry_comm *comm);
/* "pull" and so on; "none" for FERRY_PHASE_COUNT. */
const char *fy_phase_name(int phase);

#endif
