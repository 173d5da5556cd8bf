/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes: a thread per rank that sleeps on the pidfds of its peers and raises a fault the moment one of them ends
 * without having left. A peer that has no pidfd here (it lives in another pid namespace, say) is watched through the
 * heartbeat in its control block instead.
 */
#include "comm/monitor.h"

#include "comm/control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BEAT_MS = 100,
    STALE_BEATS =
        50, /* own beats without one of the peer: 5 s. Own beats, so that a pause of this process is not counted */
};

/* Who a rank's process is: a pid alone may name another process by now, or mean nothing in this namespace. */
typedef struct identity {
    int64_t pid;
    uint64_t start;                 /* clock ticks since boot; 0: unknown */
    uint64_t pid_device, pid_inode; /* of its pid namespace; 0: unknown */
} identity;

typedef enum watch { WATCH_NONE, WATCH_PIDFD, WATCH_HEARTBEAT, WATCH_ENDED } watch;

typedef struct peer {
    int rank;
    watch by;
    int64_t pid;
    uint64_t beat; /* last seen */
    int stale;     /* own beats since it changed */
} peer;

/* The wake-up descriptor is polled first, then one (or -1) per rank. */
struct fy_monitor {
    ferry_comm *comm;
    pthread_t thread;
    int running;
    size_t bytes;
    struct pollfd *fds; /* [1 + nranks] */
    peer peers[];       /* [nranks]; the own one is WATCH_NONE */
};

/* Field 22 of /proc/PID/stat; 0 when it cannot be read. */
static uint64_t start_of(int64_t pid) {
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    /* The command's name may hold anything; the last ')' ends it and field 3 follows. */
    char *at = strrchr(text, ')');
    unsigned long long start = 0;
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                      &start) != 1)
        return 0;
    return start;
}

static identity identity_of_self(void) {
    identity self = {.pid = getpid(), .start = start_of(getpid())};
    struct stat space;
    if (stat("/proc/self/ns/pid", &space) == 0) {
        self.pid_device = space.st_dev;
        self.pid_inode = space.st_ino;
    }
    return self;
}

/* Opens what the peer is watched by. It may have ended already, or its pid may be another process's. */
static watch watch_peer(const identity *self, const identity *other, int *fd) {
    int same_space = self->pid_inode == other->pid_inode && self->pid_device == other->pid_device;
    if (!same_space) return WATCH_HEARTBEAT;
    *fd = (int)syscall(SYS_pidfd_open, (pid_t)other->pid, 0);
    if (*fd < 0) return errno == ESRCH ? WATCH_ENDED : WATCH_HEARTBEAT;
    uint64_t start = start_of(other->pid);
    if (start == other->start || start == 0 || other->start == 0) return WATCH_PIDFD;
    close(*fd);
    *fd = -1;
    return WATCH_ENDED;
}

static void raise_lost(ferry_comm *comm, const peer *lost, const char *how) {
    fy_fault fault = {.status = FERRY_E_PEER,
                      .phase = FERRY_PHASE_COUNT,
                      .waiting_rank = comm->rank,
                      .awaited_rank = lost->rank,
                      .expected = -1,
                      .seen = -1};
    snprintf(fault.what, sizeof fault.what, "its process %lld %s", (long long)lost->pid, how);
    fy_raise(comm, &fault);
}

static int has_left(ferry_comm *comm, const peer *other) {
    return atomic_load_explicit(&fy_control_of(comm, other->rank)->left, memory_order_acquire) != 0;
}

/* One look at a peer; how it is watched from now on. */
static watch look(ferry_comm *comm, peer *other, const struct pollfd *fd) {
    if (other->by == WATCH_NONE || (other->by == WATCH_PIDFD && fd->revents == 0)) return other->by;
    if (other->by == WATCH_HEARTBEAT) {
        uint64_t beat = atomic_load_explicit(&fy_control_of(comm, other->rank)->heartbeat, memory_order_relaxed);
        other->stale = beat == other->beat ? other->stale + 1 : 0;
        other->beat = beat;
        if (other->stale < STALE_BEATS) return WATCH_HEARTBEAT;
    }
    if (!has_left(comm, other))
        raise_lost(comm, other, other->by == WATCH_HEARTBEAT ? "shows no heartbeat: it is dead or stopped" : "ended");
    return WATCH_NONE;
}

static void *monitor_main(void *argument) {
    struct fy_monitor *monitor = argument;
    ferry_comm *comm = monitor->comm;
    do {
        for (int r = 0; r < comm->nranks; r++) {
            monitor->peers[r].by = look(comm, &monitor->peers[r], &monitor->fds[1 + r]);
            if (monitor->peers[r].by == WATCH_NONE && monitor->fds[1 + r].fd >= 0) {
                close(monitor->fds[1 + r].fd);
                monitor->fds[1 + r].fd = -1;
            }
        }
        atomic_fetch_add_explicit(&fy_control_of(comm, comm->rank)->heartbeat, 1, memory_order_relaxed);
        for (int i = 0; i <= comm->nranks; i++) monitor->fds[i].revents = 0;
        poll(monitor->fds, (nfds_t)comm->nranks + 1, BEAT_MS);
    } while (monitor->fds[0].revents == 0);
    return NULL;
}

static ferry_status prepare(ferry_comm *comm) {
    size_t bytes = sizeof(struct fy_monitor) + (size_t)comm->nranks * sizeof(peer) +
                   ((size_t)comm->nranks + 1) * sizeof(struct pollfd);
    struct fy_monitor *monitor = NULL;
    FY_TRY(fy_alloc(&comm->memory, bytes, "the monitor of peers", (void **)&monitor));
    comm->monitor = monitor;
    monitor->comm = comm;
    monitor->bytes = bytes;
    monitor->fds = (struct pollfd *)(monitor->peers + comm->nranks);
    for (int i = 0; i <= comm->nranks; i++) monitor->fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    monitor->fds[0].fd = eventfd(0, EFD_CLOEXEC);
    if (monitor->fds[0].fd < 0)
        return fy_fail(FERRY_E_SYSTEM, "rank %d: eventfd of the monitor: %s", comm->rank, strerror(errno));
    return FERRY_OK;
}

/* Signals are the application's; none is delivered to this thread. */
static ferry_status start(ferry_comm *comm, const identity *all) {
    struct fy_monitor *monitor = comm->monitor;
    for (int r = 0; r < comm->nranks; r++) {
        monitor->peers[r] = (peer){.rank = r, .pid = all[r].pid};
        if (r != comm->rank) monitor->peers[r].by = watch_peer(&all[comm->rank], &all[r], &monitor->fds[1 + r].fd);
    }
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int error = pthread_create(&monitor->thread, NULL, monitor_main, monitor);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return fy_fail(FERRY_E_SYSTEM, "rank %d: starting the monitor: %s", comm->rank, strerror(error));
    monitor->running = 1;
    return FERRY_OK;
}

ferry_status fy_monitor_create(ferry_comm *comm) {
    identity self = identity_of_self(), all[FY_MAX_RANKS];
    ferry_status status = prepare(comm);
    ferry_status gathered = fy_allgather(comm, &self, all, sizeof self);
    if (gathered != FERRY_OK) return gathered;
    if (status == FERRY_OK) status = start(comm, all);
    return fy_agree(comm, status, "starting the monitors of peers");
}

void fy_monitor_destroy(ferry_comm *comm) {
    struct fy_monitor *monitor = comm->monitor;
    if (!monitor) return;
    if (monitor->running) {
        eventfd_write(monitor->fds[0].fd, 1);
        pthread_join(monitor->thread, NULL);
    }
    for (int i = 0; i <= comm->nranks; i++)
        if (monitor->fds[i].fd >= 0) close(monitor->fds[i].fd);
    fy_free(&comm->memory, monitor, monitor->bytes);
    comm->monitor = NULL;
}
