/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions that are needed are declared here by their documented signatures and loaded by name. */
#include "lm/outer_nccl.h"

#include "lm/error.h"
#include "lm/layout.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enumerators and sizes of the library's interface. */
enum { SUCCESS = 0, TYPE_BYTE = 1 };

typedef struct unique_id {
    char bytes[128];
} unique_id;

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(version, "ncclGetVersion", (int *version))                                                                       \
    X(unique, "ncclGetUniqueId", (unique_id * id))                                                                     \
    X(create, "ncclCommInitRank", (void **comm, int nranks, unique_id id, int rank))                                   \
    X(destroy, "ncclCommDestroy", (void *comm))                                                                        \
    X(abort, "ncclCommAbort", (void *comm))                                                                            \
    X(gather, "ncclAllGather", (const void *mine, void *all, size_t count, int type, void *comm, void *stream))

struct lm_nccl {
    pthread_mutex_t lock; /* of comm: nobody uses what another thread has ended */
    void *comm;
    const char *(*text)(int result);
#define NCCL_MEMBER(member, symbol, arguments) int(*member) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* A data pointer becomes a function pointer through memory: ISO C has no cast for it. */
static int find(void *loaded, const char *symbol, void *function) {
    void *address = dlsym(loaded, symbol);
    memcpy(function, &address, sizeof address);
    return address ? 0 : lm_fail("NCCL has no %s", symbol);
}

static int load(lm_nccl *n) {
    void *loaded = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!loaded) return lm_fail("libnccl.so.2 is not where the loader looks: set LD_LIBRARY_PATH to its folder");
    LM_TRY(find(loaded, "ncclGetErrorString", &n->text));
#define NCCL_LOAD(member, symbol, arguments) LM_TRY(find(loaded, symbol, &n->member));
    NCCL_FUNCTIONS(NCCL_LOAD)
#undef NCCL_LOAD
    return 0;
}

static int check(const lm_nccl *n, int result, const char *doing) {
    return result == SUCCESS ? 0 : lm_fail("NCCL: %s: %s", doing, n->text(result));
}

int lm_nccl_find(char *to, size_t room) {
    lm_nccl n = {0};
    int version = 0, bad = load(&n) || check(&n, n.version(&version), "asking for its version");
    if (bad) {
        snprintf(to, room, "%s", lm_error());
    } else {
        snprintf(to, room, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    }
    return !bad;
}

/* Node 0 makes the id; all take its. */
static int join(lm_nccl *n, const ferry_bootstrap *across) {
    unique_id mine = {{0}}, all[LM_SHARDS];
    if (across->nranks > LM_SHARDS) return lm_fail("%d nodes, expected at most %d", across->nranks, (int)LM_SHARDS);
    if (across->rank == 0) LM_TRY(check(n, n->unique(&mine), "making an id"));
    if (across->allgather(across->user, &mine, all, sizeof mine))
        return lm_fail("handing the id of NCCL to all nodes: %s", ferry_last_error());
    return check(n, n->create(&n->comm, across->nranks, all[0], across->rank), "joining the nodes");
}

int lm_nccl_create(const ferry_bootstrap *across, lm_nccl **nccl) {
    lm_nccl *n = calloc(1, sizeof *n);
    if (!n) return lm_fail("no memory for NCCL");
    pthread_mutex_init(&n->lock, NULL);
    if (load(n) || join(n, across)) {
        lm_nccl_destroy(n);
        return -1;
    }
    *nccl = n;
    return 0;
}

void lm_nccl_destroy(lm_nccl *nccl) {
    if (!nccl) return;
    if (nccl->comm) nccl->destroy(nccl->comm);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl); /* the library stays loaded: it may have threads that are still ending */
}

void lm_nccl_abort(lm_nccl *n) {
    pthread_mutex_lock(&n->lock);
    if (n->comm) n->abort(n->comm);
    n->comm = NULL;
    pthread_mutex_unlock(&n->lock);
}

int lm_nccl_gather(lm_nccl *n, const void *mine, void *all, size_t bytes, void *stream) {
    pthread_mutex_lock(&n->lock);
    int bad = n->comm ? check(n, n->gather(mine, all, bytes, TYPE_BYTE, n->comm, stream), "gathering across nodes")
                      : lm_fail("NCCL: it was ended, since a node is lost");
    pthread_mutex_unlock(&n->lock);
    return bad;
}
