/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator: who the ranks are, memory that they share, how they wait for each other, and how a fault of one
 * ends the waiting of all. Backends reach peers only through fy_symmetric; they wait only through fy_wait_*.
 */
#ifndef FERRY_COMM_COMM_H
#define FERRY_COMM_COMM_H

#include "core/memory.h"
#include "core/status.h"

#include <stdatomic.h>

/* Memory at one offset on every rank. base[r] is where this process sees the part of rank r. */
typedef struct fy_symmetric {
    unsigned char **base; /* [nranks] */
    size_t bytes;         /* of one rank's part, rounded up to 256 */
    struct fy_symmetric *next; /* list of the communicator */
    /* below: of symmetric.c alone */
    int *handle;
    int shared_mapping;
} fy_symmetric;

/* What went wrong first; written once by the rank that found it, copied to every rank. Plain data, fixed size. */
typedef struct fy_fault {
    int32_t status;       /* ferry_status: E_TIMEOUT, E_PEER, ... */
    int32_t phase;        /* ferry_phase */
    int32_t waiting_rank; /* who waited (who found it) */
    int32_t awaited_rank; /* for whom */
    int64_t expected, seen; /* counts, where the wait had them; -1 otherwise */
    char what[96];        /* what was awaited */
} fy_fault;

struct ferry_comm {
    int rank, nranks;
    ferry_comm_config config; /* defaults filled in: workers, timeouts */
    fy_memory memory;
    fy_symmetric *control;    /* first symmetric block: abort word, fault, heartbeat of every rank (control.c) */
    fy_symmetric *symmetric;  /* blocks of layers and of ferry_sym_alloc */
    struct fy_monitor *monitor; /* processes: the thread that notices dead peers (monitor.c); NULL for threads */
    void *backend;            /* CPU: the worker pool (cpu/pool.h) */
    int64_t calls;            /* collective layer calls so far: the epoch of flags */
};

/* ---- Collective, through the bootstrap; for create calls only ---- */
/* all = nranks * bytes. E_PEER when the bootstrap's all-gather fails. */
ferry_status fy_allgather(ferry_comm *comm, const void *mine, void *all, size_t bytes);
/* Every rank passes its own outcome; if any rank's is not FERRY_OK, every rank fails: the failing ones with their
 * own status and sentence, the others with E_PEER naming the first failing rank and its status. */
ferry_status fy_agree(ferry_comm *comm, ferry_status mine, const char *doing);
/* Zeroed memory, posix_fallocate'd when the ranks are processes; agreed on by all ranks. Counted in comm->memory. */
ferry_status fy_symmetric_create(ferry_comm *comm, size_t bytes, const char *what, fy_symmetric **out);
/* Local; peers keep their own mappings alive as long as they need them (threads: reference counted). */
void fy_symmetric_destroy(ferry_comm *comm, fy_symmetric *block);
/* The block that holds `pointer` .. `pointer + bytes` of this rank and its offset there, or NULL. */
fy_symmetric *fy_symmetric_find(ferry_comm *comm, const void *pointer, size_t bytes, size_t *offset);

/* ---- Waiting ---- */

/* A wait in progress; one per wait, on the stack. Names what is awaited, for the error. */
typedef struct fy_wait {
    ferry_comm *comm;
    ferry_phase phase;
    int awaited_rank;
    const char *what;
    double timeout_s; /* comm->config.enter_timeout_s or progress_timeout_s */
    /* below: of wait.c alone */
    int spins;
    int64_t deadline_ns;
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

#endif
