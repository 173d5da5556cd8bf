/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for the tests of src/comm, as threads or as forked processes. A rank runs outside the test's own thread or
 * process, so it counts failed checks (CHECK) and the test asserts that there were none.
 */
#ifndef FERRY_TEST_COMM_H
#define FERRY_TEST_COMM_H

#include "comm/clock.h"
#include "comm/comm.h"
#include "core/layer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic int failed_checks;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s [last error: %s]\n", __FILE__, __LINE__, #condition,                    \
                    ferry_last_error());                                                                               \
            atomic_fetch_add(&failed_checks, 1);                                                                       \
        }                                                                                                              \
    } while (0)
#define CHECK_TEXT(part) CHECK(strstr(ferry_last_error(), (part)) != NULL)
#define CHECK_OK(call) CHECK((call) == FERRY_OK)

/* A backend that only allocates, in place of the real table. */
static ferry_status backend_create(ferry_comm *comm) {
    return fy_alloc(&comm->memory, 1000, "the test's backend", &comm->backend);
}

static void backend_destroy(ferry_comm *comm) { fy_free(&comm->memory, comm->backend, 1000); }

const fy_backend *fy_backend_of(ferry_backend backend);
__attribute__((weak)) const fy_backend *fy_backend_of(ferry_backend backend) {
    static const fy_backend cpu = {.name = "test", .comm_create = backend_create, .comm_destroy = backend_destroy};
    return backend == FERRY_CPU ? &cpu : NULL;
}

typedef void rank_body(ferry_bootstrap *bootstrap, void *user);

/* ---- Threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    rank_body *body;
    void *user;
    ferry_thread_group *group;
    int rank;
} rank_thread;

static inline void *rank_thread_main(void *argument) {
    rank_thread *self = argument;
    ferry_bootstrap bootstrap;
    CHECK_OK(ferry_thread_group_bootstrap(self->group, self->rank, &bootstrap));
    self->body(&bootstrap, self->user);
    return NULL;
}

/* `group` NULL: one of its own. */
static inline void run_threads_in(ferry_thread_group *group, int nranks, rank_body *body, void *user) {
    ferry_thread_group *own = NULL;
    rank_thread ranks[16];
    if (!group) assert_int_equal(ferry_thread_group_create(nranks, &own), FERRY_OK);
    for (int r = 0; r < nranks; r++) {
        ranks[r] = (rank_thread){.body = body, .user = user, .group = group ? group : own, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_thread_main, &ranks[r]), 0);
    }
    for (int r = 0; r < nranks; r++) pthread_join(ranks[r].thread, NULL);
    ferry_thread_group_destroy(own);
    assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
}

static inline void run_threads(int nranks, rank_body *body, void *user) { run_threads_in(NULL, nranks, body, user); }

/* ---- Processes ---- */

static inline void set_rank(int rank, int nranks, const char *job) {
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", nranks);
    setenv("WORLD_SIZE", text, 1);
    setenv("FERRY_JOB", job, 1);
}

static inline const char *new_job(void) {
    static char job[64];
    static int jobs;
    snprintf(job, sizeof job, "test-%d-%d", (int)getpid(), jobs++);
    return job;
}

/* Forks a rank; it exits with 0 when all of its checks held. `timeout_s` of the bootstrap. */
static inline pid_t start_rank(int rank, int nranks, const char *job, double timeout_s, rank_body *body, void *user) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap bootstrap;
    set_rank(rank, nranks, job);
    CHECK_OK(ferry_env_bootstrap_create(timeout_s, &env, &bootstrap));
    if (env) body(&bootstrap, user);
    ferry_env_bootstrap_destroy(env);
    exit(atomic_load(&failed_checks) != 0); /* exit, so that leaks are looked for */
}

static inline int exit_code_of(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void run_processes(int nranks, rank_body *body, void *user) {
    pid_t ranks[16];
    const char *job = new_job();
    for (int r = 0; r < nranks; r++) ranks[r] = start_rank(r, nranks, job, 30, body, user);
    int failed = 0;
    for (int r = 0; r < nranks; r++) failed += exit_code_of(ranks[r]) != 0;
    assert_int_equal(failed, 0);
}

/* ---- Communicators ---- */

static inline ferry_comm_config config_of(const ferry_bootstrap *bootstrap) {
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.bootstrap = *bootstrap;
    return config;
}

/* Memory that the test's processes share, zeroed. */
static inline void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static inline double seconds_since(int64_t start_ns) { return (double)(fy_now_ns() - start_ns) * 1e-9; }

#endif
