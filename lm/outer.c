/* SPDX-License-Identifier: Apache-2.0 */
/* Sums across nodes through an all-gather, piece by piece so that memory stays bounded. */
#include "lm/outer.h"

#include "lm/error.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* values of a node that are gathered at a time */

struct lm_outer {
    ferry_bootstrap across;
    float *gathered; /* [nodes][PIECE]; NULL with one node */
};

int lm_outer_create(const ferry_bootstrap *across, lm_outer **outer) {
    lm_outer *o = calloc(1, sizeof *o);
    if (o) o->across = across ? *across : (ferry_bootstrap){.nranks = 1};
    if (o && o->across.nranks > 1) {
        o->gathered = malloc((size_t)o->across.nranks * PIECE * sizeof(float));
        if (!o->gathered) {
            free(o);
            o = NULL;
        }
    }
    if (!o) return lm_fail("no memory for sums across nodes");
    *outer = o;
    return 0;
}

void lm_outer_destroy(lm_outer *outer) {
    if (!outer) return;
    free(outer->gathered);
    free(outer);
}

int lm_outer_node(const lm_outer *outer) { return outer->across.rank; }
int lm_outer_nodes(const lm_outer *outer) { return outer->across.nranks; }

int lm_outer_gather(lm_outer *outer, const void *mine, void *all, size_t bytes) {
    const ferry_bootstrap *across = &outer->across;
    if (across->nranks == 1) {
        memmove(all, mine, bytes);
        return 0;
    }
    if (across->allgather(across->user, mine, all, bytes) == 0) return 0;
    return lm_fail("node %d of %d lost the other nodes: %s", across->rank, across->nranks, ferry_last_error());
}

int lm_outer_sum(lm_outer *outer, float *values, int64_t count) {
    int nodes = outer->across.nranks;
    if (nodes == 1) return 0;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t piece = count - begin < PIECE ? count - begin : PIECE;
        float *sum = values + begin;
        LM_TRY(lm_outer_gather(outer, sum, outer->gathered, (size_t)piece * sizeof(float)));
        memcpy(sum, outer->gathered, (size_t)piece * sizeof(float));
        for (int node = 1; node < nodes; node++) {
            const float *from = outer->gathered + node * piece;
            for (int64_t i = 0; i < piece; i++) sum[i] += from[i];
        }
    }
    return 0;
}
