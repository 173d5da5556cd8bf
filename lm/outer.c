/* SPDX-License-Identifier: Apache-2.0 */
/* Sums across nodes through an all-gather, piece by piece so that memory stays bounded. */
#include "lm/outer.h"

#include "lm/error.h"
#include "lm/outer_nccl.h"
#include "lm/outer_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 18, MOST_NODES = LM_SHARDS }; /* PIECE: values of a node that are gathered at a time */

struct lm_outer {
    ferry_bootstrap across;
    const lm_ops *ops;
    float *gathered; /* [nodes][PIECE] */
    lm_nccl *nccl;   /* NULL: through the bootstrap */
    lm_watch *watch; /* with NCCL */
    int finished;
    unsigned char *host; /* GPU without NCCL: on the way, grown when needed */
    size_t host_bytes;
    char way[64];
};

/* ---- Which way ---- */

/* What a node says of its GPU. Two nodes with the same one must not be joined by NCCL. */
typedef struct gpu_identity {
    char host[64], boot[40], visible[64]; /* the system's names, and which of its GPUs the process sees */
    int device, has_nccl;
} gpu_identity;

static gpu_identity identify_gpu(int device, char *version, size_t room) {
    gpu_identity gpu;
    memset(&gpu, 0, sizeof gpu); /* identities are compared as bytes */
    gpu.device = device;
    gpu.has_nccl = lm_nccl_find(version, room);
    gethostname(gpu.host, sizeof gpu.host - 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(gpu.visible, sizeof gpu.visible, "%s", visible ? visible : "");
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (boot && !fgets(gpu.boot, sizeof gpu.boot, boot)) gpu.boot[0] = 0;
    if (boot) fclose(boot);
    return gpu;
}

static void abort_nccl(void *user) { lm_nccl_abort(((lm_outer *)user)->nccl); }

static int choose_way(lm_outer *o, int device) {
    gpu_identity mine, all[MOST_NODES];
    char version[48];
    mine = identify_gpu(device, version, sizeof version);
    if (o->across.allgather(o->across.user, &mine, all, sizeof mine))
        return lm_fail("finding the GPUs of all nodes: %s", ferry_last_error());
    for (int a = 0; a < o->across.nranks; a++) {
        if (!all[a].has_nccl) return 0;
        for (int b = 0; b < a; b++) {
            if (memcmp(&all[a], &all[b], sizeof all[a]) == 0) return 0;
        }
    }
    snprintf(o->way, sizeof o->way, "NCCL %s", version);
    LM_TRY(lm_nccl_create(&o->across, &o->nccl));
    return lm_watch_create(&o->across, abort_nccl, o, &o->watch);
}

/* ---- Life ---- */

static int create(lm_outer *o, const lm_config *config) {
    if (o->across.nranks == 1) return 0;
    if (o->across.nranks > MOST_NODES) return lm_fail("%d nodes, expected at most %d", o->across.nranks, MOST_NODES);
    o->gathered = o->ops->alloc((size_t)o->across.nranks * PIECE * sizeof(float));
    if (!o->gathered) return lm_fail("no memory for sums across nodes");
    snprintf(o->way, sizeof o->way, "host memory");
    return config->backend == FERRY_CUDA ? choose_way(o, config->device) : 0;
}

int lm_outer_create(const ferry_bootstrap *across, const lm_ops *ops, const lm_config *config, lm_outer **outer) {
    lm_outer *o = calloc(1, sizeof *o);
    if (!o) return lm_fail("no memory for sums across nodes");
    o->across = across ? *across : (ferry_bootstrap){.nranks = 1};
    o->ops = ops;
    if (create(o, config)) {
        lm_outer_destroy(o);
        return -1;
    }
    *outer = o;
    return 0;
}

void lm_outer_destroy(lm_outer *outer) {
    if (!outer) return;
    lm_watch_destroy(outer->watch, outer->finished);
    if (outer->nccl && !outer->finished) lm_nccl_abort(outer->nccl);
    lm_nccl_destroy(outer->nccl);
    if (outer->gathered) outer->ops->free(outer->gathered);
    free(outer->host);
    free(outer);
}

void lm_outer_finish(lm_outer *outer) { outer->finished = 1; }

int lm_outer_check(lm_outer *outer) { return outer->watch ? lm_watch_check(outer->watch) : 0; }

const char *lm_outer_way(const lm_outer *outer) { return outer->way; }

/* ---- Gather and sum ---- */

static int gather_on_host(lm_outer *o, const void *mine, void *all, size_t bytes) {
    const ferry_bootstrap *across = &o->across;
    if (across->allgather(across->user, mine, all, bytes) == 0) return 0;
    return lm_fail("node %d of %d lost the other nodes: %s", across->rank, across->nranks, ferry_last_error());
}

static int gather_through_host(lm_outer *o, const void *mine, void *all, size_t bytes) {
    size_t needed = (size_t)o->across.nranks * bytes;
    if (needed > o->host_bytes) {
        unsigned char *larger = realloc(o->host, needed);
        if (!larger) return lm_fail("no memory for %zu bytes of all nodes", needed);
        o->host = larger;
        o->host_bytes = needed;
    }
    unsigned char *own = o->host + (size_t)o->across.rank * bytes;
    LM_TRY(o->ops->get(own, mine, bytes));
    LM_TRY(gather_on_host(o, own, o->host, bytes));
    o->ops->put(all, o->host, needed);
    return 0;
}

int lm_outer_gather(lm_outer *o, const void *mine, void *all, size_t bytes) {
    LM_TRY(lm_outer_check(o));
    if (o->nccl) return lm_nccl_gather(o->nccl, mine, all, bytes, o->ops->stream());
    return o->ops == &lm_ops_cpu ? gather_on_host(o, mine, all, bytes) : gather_through_host(o, mine, all, bytes);
}

int lm_outer_sum(lm_outer *o, float *values, int64_t count) {
    int nodes = o->across.nranks;
    if (nodes == 1) return 0;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t piece = count - begin < PIECE ? count - begin : PIECE;
        float *sum = values + begin;
        LM_TRY(lm_outer_gather(o, sum, o->gathered, (size_t)piece * sizeof(float)));
        o->ops->copy(sum, o->gathered, (size_t)piece * sizeof(float));
        for (int node = 1; node < nodes; node++) o->ops->add(sum, o->gathered + node * piece, piece);
    }
    return 0;
}
