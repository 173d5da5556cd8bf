/* SPDX-License-Identifier: Apache-2.0 */
/* A layer whose ranks are threads of a test: made, worked with and destroyed by each of them. */
#ifndef FERRY_TESTS_LAYER_RANKS_H
#define FERRY_TESTS_LAYER_RANKS_H

#include "ferry/ferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>

/* What a rank does with its layer and a context of it. */
typedef ferry_status layer_work(void *job, int rank, ferry_layer *layer, ferry_context *context);

/* layer_rank_init, then what the test wants; the bootstrap is run_layer_ranks' affair. */
typedef struct layer_rank {
    ferry_comm_config comm;
    ferry_layer_config layer;
    layer_work *work;
    void *job;
    ferry_thread_group *group;
    int rank;
    ferry_status status;
} layer_rank;

static inline void layer_rank_init(layer_rank *r, layer_work *work, void *job) {
    *r = (layer_rank){.work = work, .job = job};
    ferry_comm_config_init(&r->comm);
    ferry_layer_config_init(&r->layer);
    r->layer.tune_file = "";
}

static inline void layer_rank_extents(layer_rank *r, int64_t hidden, int64_t intermediate, int64_t experts,
                                      int64_t slots, int64_t tokens) {
    r->layer.hidden = hidden;
    r->layer.intermediate = intermediate;
    r->layer.experts = experts;
    r->layer.slots = slots;
    r->layer.max_tokens = tokens;
}

static inline void *layer_rank_main(void *argument) {
    layer_rank *r = argument;
    ferry_comm *comm = NULL;
    ferry_layer *layer = NULL;
    ferry_context *context = NULL;
    r->status = ferry_thread_group_bootstrap(r->group, r->rank, &r->comm.bootstrap);
    if (!r->status) r->status = ferry_comm_create(&r->comm, &comm);
    if (!r->status) r->status = ferry_layer_create(comm, &r->layer, &layer);
    if (!r->status) r->status = ferry_context_create(layer, NULL, &context);
    if (!r->status) r->status = r->work(r->job, r->rank, layer, context);
    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    return NULL;
}

/* Every rank has to succeed. */
static inline void run_layer_ranks(layer_rank *ranks, int count) {
    ferry_thread_group *group;
    pthread_t thread[16];
    assert_in_range(count, 1, sizeof thread / sizeof *thread);
    assert_int_equal(ferry_thread_group_create(count, &group), FERRY_OK);
    for (int r = 0; r < count; r++) {
        ranks[r].group = group;
        ranks[r].rank = r;
        assert_int_equal(pthread_create(&thread[r], NULL, layer_rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < count; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < count; r++) assert_int_equal(ranks[r].status, FERRY_OK);
    ferry_thread_group_destroy(group);
}

/* A matrix of each expert, without gaps. */
static inline ferry_matrices dense_matrices(void *base, int64_t rows, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = dtype};
}

#endif
