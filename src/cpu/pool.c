/* SPDX-License-Identifier: Apache-2.0 */
/* One job at a time: a round number says that it is new, a count when all workers have returned from it. */
#include "cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

typedef struct worker {
    struct fy_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct fy_pool {
    fy_memory *memory;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    int (*job)(void *, int);
    void *argument;
    uint64_t round; /* of the job that runs or ran last */
    int running, failed, ending;
    int workers;
    worker worker[];
};

static size_t pool_bytes(int workers) { return sizeof(fy_pool) + (size_t)workers * sizeof(worker); }

static void *work(void *argument) {
    worker *self = argument;
    fy_pool *pool = self->pool;
    uint64_t round = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->ending && pool->round == round) pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->ending) break;
        round = pool->round;
        pthread_mutex_unlock(&pool->lock);
        int failed = pool->job(pool->argument, self->index) != 0;
        pthread_mutex_lock(&pool->lock);
        pool->failed += failed;
        if (--pool->running == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void end(fy_pool *pool, int started) {
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < started; i++) pthread_join(pool->worker[i].thread, NULL);
    pthread_cond_destroy(&pool->start);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    fy_free(pool->memory, pool, pool_bytes(pool->workers));
}

/* Workers take no signals: those are for the caller's threads. */
static int start_worker(worker *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

ferry_status fy_pool_create(fy_memory *memory, int workers, fy_pool **out) {
    fy_pool *pool;
    FY_TRY(fy_alloc(memory, pool_bytes(workers), "the worker pool", (void **)&pool));
    pool->memory = memory;
    pool->workers = workers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 0; i < workers; i++) {
        pool->worker[i].pool = pool;
        pool->worker[i].index = i;
        int error = start_worker(&pool->worker[i]);
        if (error != 0) {
            end(pool, i);
            return fy_fail(FERRY_E_SYSTEM, "worker %d of %d could not be started: %s", i, workers, strerror(error));
        }
    }
    *out = pool;
    return FERRY_OK;
}

void fy_pool_destroy(fy_pool *pool) {
    if (pool) end(pool, pool->workers);
}

int fy_pool_run(fy_pool *pool, int (*job)(void *, int), void *argument) {
    pthread_mutex_lock(&pool->lock);
    pool->job = job;
    pool->argument = argument;
    pool->running = pool->workers;
    pool->failed = 0;
    pool->round++;
    pthread_cond_broadcast(&pool->start);
    while (pool->running > 0) pthread_cond_wait(&pool->done, &pool->lock);
    int failed = pool->failed;
    pthread_mutex_unlock(&pool->lock);
    return failed;
}
