/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism across nodes. A node is a group of ranks with all experts among them; every node trains the same
 * model on its own shards of the batch. The ranks at the same place of all nodes hold the same experts and the same
 * slice of the dense vector, and add up what they have of both, in node order: so the bits of a sum depend on the
 * number of nodes, and on nothing else.
 */
#ifndef FERRY_LM_OUTER_H
#define FERRY_LM_OUTER_H

#include "lm/ops.h"

#include "ferry/ferry.h"

typedef struct lm_outer lm_outer;

/*
 * Collective across nodes. `across` joins the ranks at this rank's place of all nodes: its rank is the number of this
 * rank's node. NULL: there is one node. Its all-gather is called at every step, and must be alive as long as the outer
 * group is. Arrays are those of the backend of config, whose operations `ops` are: what lies on GPUs goes through NCCL
 * when every node has it and a GPU of its own, and through host memory otherwise, with the same bits.
 */
int lm_outer_create(const ferry_bootstrap *across, const lm_ops *ops, const lm_config *config, lm_outer **outer);
/* Whoever destroys it before lm_outer_finish has failed, which the other nodes are told. */
void lm_outer_destroy(lm_outer *outer);
/* All is done on this node: destroying it waits until that is so on all. */
void lm_outer_finish(lm_outer *outer);

/* How nodes are joined, for people: "NCCL 2.27.3", "host memory", or "" with one node. */
const char *lm_outer_way(const lm_outer *outer);

/* Collective across nodes. Every node's `bytes` bytes into all[nodes * bytes], in node order; `mine` may lie at its
 * place in `all`. */
int lm_outer_gather(lm_outer *outer, const void *mine, void *all, size_t bytes);
/* Collective across nodes. values[count] become their sum over the nodes. */
int lm_outer_sum(lm_outer *outer, float *values, int64_t count);
/* Local. Whether sums are what they should be: ask once they have been waited for, before anybody relies on them. On a
 * GPU they may have been given up for a node that is lost. 0, or -1 with lm_error(). */
int lm_outer_check(lm_outer *outer);

#endif
