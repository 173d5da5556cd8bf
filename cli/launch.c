/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads share thread groups; ranks as processes find each other through the environment bootstrap. */
#include "cli/launch.h"

#include "cli/clock.h"
#include "cli/message.h"
#include "comm/bootstrap.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Threads ---- */

/* A rank without its thread would leave the others waiting for it, so ranks begin only when every thread exists:
 * the launcher holds `lock` while it starts them, and `open` says whether they may go on. */
typedef struct thread_gate {
    pthread_mutex_t lock;
    int open;
} thread_gate;

typedef struct rank_thread {
    pthread_t thread;
    thread_gate *gate;
    ferry_thread_group **groups; /* of the nodes, then of the places of a node */
    cli_rank_main *rank_main;
    void *user;
    int nranks, nodes;
    int rank, exit_code;
} rank_thread;

static ferry_status join_threads(const rank_thread *self, ferry_bootstrap *bootstrap) {
    int node = self->rank / self->nranks, place = self->rank % self->nranks;
    ferry_status status = ferry_thread_group_bootstrap(self->groups[node], place, &bootstrap[CLI_NODE]);
    return status || self->nodes == 1
               ? status
               : ferry_thread_group_bootstrap(self->groups[self->nodes + place], node, &bootstrap[CLI_ACROSS]);
}

/* Nobody sees a thread end, unlike a process: ranks that gather with it must be told that it failed. */
static void leave_threads(const rank_thread *self) {
    int node = self->rank / self->nranks, place = self->rank % self->nranks;
    fy_thread_group_leave(self->groups[node], place);
    if (self->nodes > 1) fy_thread_group_leave(self->groups[self->nodes + place], node);
}

static void *thread_main(void *argument) {
    rank_thread *self = argument;
    pthread_mutex_lock(&self->gate->lock);
    int open = self->gate->open;
    pthread_mutex_unlock(&self->gate->lock);
    if (!open) return NULL;

    ferry_bootstrap bootstrap[CLI_BOOTSTRAPS] = {[CLI_ACROSS] = {.nranks = 1}};
    ferry_status status = join_threads(self, bootstrap);
    self->exit_code = status ? cli_fail_status(status, "joining the group of threads")
                             : self->rank_main(self->user, bootstrap, self->rank);
    if (self->exit_code) leave_threads(self);
    return NULL;
}

static int start_and_join(rank_thread *ranks, const rank_thread *common, int count) {
    int code = 0, started = 0;
    pthread_mutex_lock(&common->gate->lock);
    while (started < count && !code) {
        ranks[started] = *common;
        ranks[started].rank = started;
        int error = pthread_create(&ranks[started].thread, NULL, thread_main, &ranks[started]);
        if (error) {
            code = cli_fail("cannot start the thread of rank %d: %s", started, strerror(error));
        } else {
            started++;
        }
    }
    common->gate->open = code == 0;
    pthread_mutex_unlock(&common->gate->lock);
    for (int r = 0; r < started; r++) {
        pthread_join(ranks[r].thread, NULL);
        if (!code) code = ranks[r].exit_code;
    }
    return code;
}

static int launch_threads(const cli_launch_options *options, cli_rank_main *rank_main, void *user, double timeout_s) {
    thread_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    int nodes = options->nodes, count = nodes * options->nranks, code = 0;
    int groups = nodes > 1 ? nodes + options->nranks : 1;
    rank_thread common = {
        .gate = &gate, .rank_main = rank_main, .user = user, .nranks = options->nranks, .nodes = nodes};
    rank_thread *ranks = calloc((size_t)count, sizeof *ranks);
    common.groups = calloc((size_t)groups, sizeof(ferry_thread_group *));
    if (!ranks || !common.groups) code = cli_fail("no memory for %d rank threads", count);
    for (int g = 0; g < groups && !code; g++) {
        ferry_status status = ferry_thread_group_create(g < nodes ? options->nranks : nodes, &common.groups[g]);
        if (status) code = cli_fail_status(status, "making a group of threads");
        if (!code && g >= nodes) fy_thread_group_timeout(common.groups[g], timeout_s);
    }
    if (!code) code = start_and_join(ranks, &common, count);
    for (int g = 0; common.groups && g < groups; g++) ferry_thread_group_destroy(common.groups[g]);
    free(common.groups);
    free(ranks);
    return code;
}

/* ---- Processes ---- */

/* Ranks that have not met yet wait for the one that failed: nothing but their deadline ends that. */
#define GRACE_BEFORE_MEETING_S 5.0

/* The children of a job. */
typedef struct rank_processes {
    pid_t *pids; /* [count]; 0: never started, or ended */
    int count;
    _Atomic int *met; /* shared with the children: how many have met all that they have to */
    double grace_s;   /* for children to end after one has failed */
} rank_processes;

/* In the child: meets the ranks of one group, which goes by the name of the job and `part`. */
static ferry_status meet(const char *job, const char *part, int number, int rank, int nranks, double timeout_s,
                         ferry_env_bootstrap **env, ferry_bootstrap *bootstrap) {
    char text[128];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", nranks);
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%s-%s%d", job, part, number);
    setenv("FERRY_JOB", text, 1);
    return ferry_env_bootstrap_create(timeout_s, env, bootstrap);
}

/* In the child. Exits with the rank's code. */
static _Noreturn void child_main(const cli_launch_options *options, cli_rank_main *rank_main, void *user, int rank,
                                 const char *job, pid_t parent, _Atomic int *met) {
    int nodes = options->nodes, node = rank / options->nranks, place = rank % options->nranks;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(CLI_FAILED); /* it died before the line above */

    ferry_env_bootstrap *across = NULL, *env = NULL;
    ferry_bootstrap bootstrap[CLI_BOOTSTRAPS] = {[CLI_ACROSS] = {.nranks = 1}};
    ferry_status status = FERRY_OK;
    if (nodes > 1) status = meet(job, "place", place, node, nodes, options->timeout_s, &across, &bootstrap[CLI_ACROSS]);
    if (!status)
        status = meet(job, "node", node, place, options->nranks, options->timeout_s, &env, &bootstrap[CLI_NODE]);
    if (!status) (*met)++;
    int code = status ? cli_fail_status(status, "meeting the other ranks") : rank_main(user, bootstrap, rank);
    ferry_env_bootstrap_destroy(env);
    ferry_env_bootstrap_destroy(across);
    exit(cli_finish(code));
}

/* The exit code of an ended child; says when a signal ended it. */
static int child_code(int wait_status, int rank) {
    if (!WIFSIGNALED(wait_status)) return WEXITSTATUS(wait_status);
    int signal_number = WTERMSIG(wait_status);
    cli_note("rank %d was ended by signal %d (%s)", rank, signal_number, strsignal(signal_number));
    return CLI_FAILED;
}

static double grace_of(const rank_processes *p) {
    return *p->met < p->count && p->grace_s > GRACE_BEFORE_MEETING_S ? GRACE_BEFORE_MEETING_S : p->grace_s;
}

/* Waits for all children; `code` is a failure from before, or 0. */
static int wait_for_children(rank_processes *p, int code) {
    pid_t *pids = p->pids;
    double failed = code ? cli_now_s() : 0;
    int killed = 0;
    for (int alive = 1; alive;) {
        alive = 0;
        for (int r = 0; r < p->count; r++) {
            int wait_status;
            if (pids[r] == 0) continue;
            pid_t got = waitpid(pids[r], &wait_status, WNOHANG);
            if (got == 0 || (got < 0 && errno == EINTR)) {
                alive = 1;
                continue;
            }
            int ended = got == pids[r] ? child_code(wait_status, r) : CLI_FAILED;
            pids[r] = 0;
            if (ended && !code) {
                code = ended;
                failed = cli_now_s();
            }
        }
        if (alive && code && !killed && cli_now_s() > failed + grace_of(p)) {
            cli_note("ending the ranks that are still there %.0f s after a failure", grace_of(p));
            for (int r = 0; r < p->count; r++) {
                if (pids[r]) kill(pids[r], SIGKILL);
            }
            killed = 1;
        }
        if (alive) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return code;
}

static int launch_processes(const cli_launch_options *options, cli_rank_main *rank_main, void *user, double grace_s) {
    char job[64];
    pid_t parent = getpid();
    uint64_t number; /* random: containers that share a network have equal pids at equal times */
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return cli_fail("no random number for the name of the job: %s", strerror(errno));
    snprintf(job, sizeof job, "ferry-%ld-%016llx", (long)parent, (unsigned long long)number);

    int count = options->nodes * options->nranks, code = 0;
    rank_processes p = {.count = count, .grace_s = grace_s};
    p.pids = calloc((size_t)count, sizeof *p.pids);
    p.met = cli_shared_alloc(sizeof *p.met);
    if (!p.pids || !p.met) code = cli_fail("no memory for %d ranks", count);
    fflush(NULL); /* or children would print what is buffered here again */
    for (int r = 0; r < count && !code; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            free(p.pids); /* the parent has them */
            child_main(options, rank_main, user, r, job, parent, p.met);
        }
        if (pid < 0) code = cli_fail("cannot start the process of rank %d: %s", r, strerror(errno));
        p.pids[r] = pid < 0 ? 0 : pid;
    }
    if (p.pids && p.met) code = wait_for_children(&p, code);
    cli_shared_free(p.met, sizeof *p.met);
    free(p.pids);
    return code;
}

int cli_launch(const cli_launch_options *options, cli_rank_main *rank_main, void *user) {
    double timeout_s = options->timeout_s > 0 ? options->timeout_s : 600;
    cli_launch_options all = *options;
    if (all.nodes < 1) all.nodes = 1;
    if (all.processes) return launch_processes(&all, rank_main, user, timeout_s);
    return launch_threads(&all, rank_main, user, timeout_s);
}

/* ---- Shared memory ---- */

void *cli_shared_alloc(size_t bytes) {
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void cli_shared_free(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes ? bytes : 1);
}
