/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of one process: an all-gather under one mutex. The last rank to come copies for everybody, so no
 * buffer is needed and nobody's memory is read after its owner has left. A failure breaks the group for good.
 */
#include "comm/bootstrap.h"

#include "comm/clock.h"
#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's place in the group: the bootstrap's `user`. */
typedef struct seat {
    ferry_thread_group *group;
    int rank, present; /* present: waits in the current round with `mine` and `all` */
    const unsigned char *mine;
    unsigned char *all;
} seat;

struct ferry_thread_group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double timeout_s;
    int nranks, arrived, first; /* first: who came first in this round */
    uint64_t round;
    size_t bytes; /* of this round, as the first rank said */
    ferry_status broken;
    char why[256];
    seat seats[];
};

ferry_status ferry_thread_group_create(int nranks, ferry_thread_group **group) {
    if (!group) return fy_fail(FERRY_E_INVALID, "ferry_thread_group_create: group is NULL");
    if (nranks < 1 || nranks > FY_MAX_RANKS)
        return fy_fail(FERRY_E_INVALID, "ferry_thread_group_create: nranks is %d, expected 1..%d", nranks,
                       (int)FY_MAX_RANKS);
    ferry_thread_group *made = calloc(1, sizeof *made + (size_t)nranks * sizeof *made->seats);
    if (!made) return fy_fail(FERRY_E_MEMORY, "ferry_thread_group_create: no memory for %d ranks", nranks);
    made->nranks = nranks;
    made->timeout_s = 600;
    for (int r = 0; r < nranks; r++) made->seats[r] = (seat){.group = made, .rank = r};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&made->lock, NULL);
    *group = made;
    return FERRY_OK;
}

void ferry_thread_group_destroy(ferry_thread_group *group) {
    if (!group) return;
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

void fy_thread_group_timeout(ferry_thread_group *group, double timeout_s) { group->timeout_s = timeout_s; }

ferry_status ferry_thread_group_bootstrap(ferry_thread_group *group, int rank, ferry_bootstrap *bootstrap) {
    if (!group || !bootstrap)
        return fy_fail(FERRY_E_INVALID, "ferry_thread_group_bootstrap: %s is NULL", group ? "bootstrap" : "group");
    if (rank < 0 || rank >= group->nranks)
        return fy_fail(FERRY_E_INVALID, "ferry_thread_group_bootstrap: rank is %d, expected 0..%d", rank,
                       group->nranks - 1);
    *bootstrap = (ferry_bootstrap){.rank = rank,
                                   .nranks = group->nranks,
                                   .allgather = fy_thread_allgather,
                                   .user = &group->seats[rank],
                                   .same_process = 1};
    return FERRY_OK;
}

/* The following, up to finish_round: with the lock held. */

static void break_group(ferry_thread_group *group, ferry_status status) {
    group->broken = status;
    pthread_cond_broadcast(&group->changed);
}

static void break_by_deadline(ferry_thread_group *group, int rank) {
    int missing = 0;
    while (group->seats[missing].present) missing++;
    snprintf(
        group->why, sizeof group->why,
        "threads as ranks: rank %d waited %g s in an all-gather of %zu bytes, %d of %d ranks came, rank %d did not",
        rank, group->timeout_s, group->bytes, group->arrived, group->nranks, missing);
    break_group(group, FERRY_E_TIMEOUT);
}

static void enter_round(seat *self, const void *mine, void *all, size_t bytes) {
    ferry_thread_group *group = self->group;
    if (self->present) {
        snprintf(group->why, sizeof group->why, "threads as ranks: two threads act as rank %d", self->rank);
        break_group(group, FERRY_E_INVALID);
        return;
    }
    if (group->arrived == 0) {
        group->bytes = bytes;
        group->first = self->rank;
    }
    if (bytes != group->bytes) {
        snprintf(group->why, sizeof group->why,
                 "threads as ranks: rank %d gathers %zu bytes while rank %d gathers %zu; all ranks must make the same "
                 "collective calls",
                 self->rank, bytes, group->first, group->bytes);
        break_group(group, FERRY_E_MISMATCH);
        return;
    }
    self->mine = mine;
    self->all = all;
    self->present = 1;
    group->arrived++;
}

static void finish_round(ferry_thread_group *group) {
    for (int to = 0; to < group->nranks; to++) {
        for (int from = 0; from < group->nranks && group->bytes > 0; from++)
            memmove(group->seats[to].all + (size_t)from * group->bytes, group->seats[from].mine, group->bytes);
        group->seats[to].present = 0;
    }
    group->arrived = 0;
    group->round++;
    pthread_cond_broadcast(&group->changed);
}

int fy_thread_allgather(void *user, const void *mine, void *all, size_t bytes) {
    seat *self = user;
    ferry_thread_group *group = self->group;
    int64_t deadline = fy_deadline_ns(group->timeout_s);
    const struct timespec until = {deadline / 1000000000, deadline % 1000000000};

    pthread_mutex_lock(&group->lock);
    uint64_t round = group->round;
    if (!group->broken) enter_round(self, mine, all, bytes);
    if (group->arrived == group->nranks && !group->broken) finish_round(group);
    while (group->round == round && !group->broken) {
        if (pthread_cond_timedwait(&group->changed, &group->lock, &until) != 0 && group->round == round &&
            !group->broken && fy_now_ns() >= deadline)
            break_by_deadline(group, self->rank);
    }
    ferry_status status = group->round == round ? fy_fail(group->broken, "%s", group->why) : FERRY_OK;
    pthread_mutex_unlock(&group->lock);
    return status;
}

void fy_thread_group_leave(ferry_thread_group *group, int rank) {
    pthread_mutex_lock(&group->lock);
    if (!group->broken) {
        snprintf(group->why, sizeof group->why, "threads as ranks: rank %d failed and left the group", rank);
        break_group(group, FERRY_E_PEER);
    }
    pthread_mutex_unlock(&group->lock);
}
