/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workers of a block beside its loading thread and the choosing one of a backward (which are the real code) and its
 * copy engine. They are written again here, after role_pull*.cuh, role_product*.cuh, role_choose.cuh and
 * role_signal.cuh, because there a whole warp or warpgroup acts at once: in the same order of waits, reads, writes and
 * signals, with tags for values. Where those roles change, these have to.
 */
#ifndef FERRY_MODEL_ROLES_H
#define FERRY_MODEL_ROLES_H

void pull_forward_role(int block, int warp);     /* a warp that pulls */
void pull_forward_head(int block, int warp);     /* only the head's rows, as multiplying warps do first */
void product_forward_role(int block, int group); /* a warpgroup of consumers */
void choose_forward_role(int block, int warp);   /* the warp that chooses tiles and signals for both */

void pull_backward_role(int block, int warp);
void pull_backward_head(int block, int warp);
void product_backward_role(int block, int group);

/* blocks.cc: draws how many blocks are resident, on which sides, with which workers. */
void blocks_add();
const char *blocks_describe();
unsigned char *block_memory(int block); /* its shared memory */

#endif
