/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that do a problem in some way: the whole run in one call, or step by step inside a rank of one's own. */
#ifndef FERRY_CLI_CHECK_SESSION_H
#define FERRY_CLI_CHECK_SESSION_H

#include "cli/check/shard.h"

/* A communicator and a layer of one rank. */
typedef struct check_rank {
    const check_case *c;
    const check_way *way;
    int rank;
    ferry_comm *comm;
    ferry_layer *layer;
} check_rank;

/* The configurations that a way gives a rank for batches like `batch`. `expert_rank` has room for E entries. */
void check_comm_config(const check_way *way, const ferry_bootstrap *bootstrap, ferry_comm_config *config);
void check_layer_config(const check_batch *batch, const check_way *way, int32_t *expert_rank,
                        ferry_layer_config *config);

/* Collective. What failed is returned, not judged; what was made before is in `r` for check_rank_close. */
ferry_status check_rank_try_open(check_rank *r, const check_case *c, const check_batch *batch, const check_way *way,
                                 const ferry_bootstrap *bootstrap);
/* The same; 0 after a check_fail, and then everything is closed. */
int check_rank_open(check_rank *r, const check_case *c, const check_batch *batch, const check_way *way,
                    const ferry_bootstrap *bootstrap);
void check_rank_close(check_rank *r);
/* A context of the layer's own memory; 0 after a check_fail. */
int check_rank_context(check_rank *r, ferry_context **context);

/* Steps; each returns 0 after a check_fail. A batch with bad ids must be reported as such, by the call and by poll.
 * `forward` leaves x, ids and weights overwritten. `result` may be NULL; otherwise statistics go there. */
int check_rank_forward(check_rank *r, check_shard *shard, ferry_context *context, check_result *result);
int check_rank_backward(check_rank *r, check_shard *shard, ferry_context *context, check_result *result);

/* Fails unless `status` is what was expected; 1 when it was. */
int check_status(const check_case *c, int rank, ferry_status status, ferry_status expected, const char *doing);

/* The body of a rank of a test, and everything it works with; `result` is shared, `user` is the test's own. */
typedef struct check_job {
    const check_case *c;
    const check_batch *batch;
    const check_way *way;
    check_result *result;
    void *user;
} check_job;

typedef void check_rank_body(const check_job *job, const ferry_bootstrap *bootstrap, int rank);

/* Runs `body` on every rank of job->way. Fails the test when a rank ends by itself otherwise than by returning, unless
 * `deaths` says that it may. */
void check_launch(const check_job *job, check_rank_body *body, int deaths);

/* Forward and backward on all ranks. NULL after a check_fail. */
check_result *check_run(const check_case *c, const check_batch *batch, const check_way *way);

/* A problem and a way, run and compared with the references: the body's argument is a check_recipe. */
typedef struct check_recipe {
    check_problem problem;
    check_way way;
} check_recipe;

check_body check_run_recipe;

/* 1 when the machine and the build can run the way; otherwise skips the test. */
int check_way_possible(const check_case *c, const check_way *way);

#endif
