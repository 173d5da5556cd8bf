/* SPDX-License-Identifier: Apache-2.0 */
/* An all-gather every now and then: of what each node says of itself, or that fails because one no longer can. */
#include "lm/outer_watch.h"

#include "lm/error.h"
#include "lm/layout.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EVERY_NS = 200000000 };

typedef enum word { WORKING = 1, FINISHED, FAILED } word;

struct lm_watch {
    ferry_bootstrap across;
    void (*lost)(void *user);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* `mine` has */
    word mine;
    char why[512]; /* "": nobody is lost */
};

/* After some time, or at once when this node has something else to say. */
static word next_word(lm_watch *w, word said) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += EVERY_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    while (w->mine == said && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0) continue;
    word next = w->mine;
    pthread_mutex_unlock(&w->lock);
    return next;
}

static void give_up(lm_watch *w, const char *why) {
    pthread_mutex_lock(&w->lock);
    snprintf(w->why, sizeof w->why, "node %d of %d lost the other nodes: %s", w->across.rank, w->across.nranks, why);
    pthread_mutex_unlock(&w->lock);
    w->lost(w->user);
}

static void *watch_main(void *argument) {
    lm_watch *w = argument;
    word mine = WORKING;
    for (;;) {
        word all[LM_SHARDS];
        char why[64] = "";
        int finished = 0;
        if (w->across.allgather(w->across.user, &mine, all, sizeof mine)) {
            give_up(w, ferry_last_error());
            return NULL;
        }
        for (int n = 0; n < w->across.nranks; n++) {
            finished += all[n] == FINISHED;
            if (all[n] == FAILED) snprintf(why, sizeof why, "node %d failed", n);
        }
        if (why[0] && mine != FAILED) give_up(w, why);
        if (why[0] || finished == w->across.nranks) return NULL;
        mine = next_word(w, mine);
    }
}

int lm_watch_create(const ferry_bootstrap *across, void (*lost)(void *user), void *user, lm_watch **watch) {
    if (across->nranks > LM_SHARDS) return lm_fail("%d nodes, expected at most %d", across->nranks, (int)LM_SHARDS);
    lm_watch *w = calloc(1, sizeof *w);
    if (!w) return lm_fail("no memory to watch the other nodes");
    *w = (lm_watch){.across = *across,
                    .lost = lost,
                    .user = user,
                    .lock = PTHREAD_MUTEX_INITIALIZER,
                    .changed = PTHREAD_COND_INITIALIZER,
                    .mine = WORKING};
    if (pthread_create(&w->thread, NULL, watch_main, w)) {
        free(w);
        return lm_fail("no thread to watch the other nodes");
    }
    *watch = w;
    return 0;
}

int lm_watch_check(lm_watch *w) {
    pthread_mutex_lock(&w->lock);
    int bad = w->why[0] ? lm_fail("%s", w->why) : 0;
    pthread_mutex_unlock(&w->lock);
    return bad;
}

void lm_watch_destroy(lm_watch *w, int finished) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->mine = finished ? FINISHED : FAILED;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
