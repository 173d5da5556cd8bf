/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator that works: all-gather, agreement, symmetric memory, barrier; ranks as threads and as processes. */
#include "test_comm.h"

/* ---- Bodies ---- */

static void gathers(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    int n = bootstrap->nranks;
    for (int round = 0; round < 50; round++) {
        size_t bytes = (size_t)(round * 37 % 5000);
        unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)n + 1);
        memset(mine, bootstrap->rank * 16 + round % 16, bytes);
        memset(all, 0xee, bytes * (size_t)n + 1);
        CHECK(bootstrap->allgather(bootstrap->user, mine, all, bytes) == 0);
        int wrong = 0;
        for (size_t i = 0; i < bytes * (size_t)n; i++) wrong += all[i] != (int)(i / bytes) * 16 + round % 16;
        CHECK(wrong == 0);
        CHECK(all[bytes * (size_t)n] == 0xee);
        free(mine);
        free(all);
    }
}

static void creates(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    CHECK(ferry_comm_rank(comm) == bootstrap->rank);
    CHECK(ferry_comm_size(comm) == bootstrap->nranks);
    CHECK_OK(ferry_comm_error(comm));
    long expected = sysconf(_SC_NPROCESSORS_ONLN) / bootstrap->nranks;
    CHECK(comm->config.compute_workers == (expected < 1 ? 1 : expected > 64 ? 64 : expected));
    CHECK(comm->config.comm_workers == 1);
    CHECK(comm->config.enter_timeout_s == 600 && comm->config.progress_timeout_s == 60);
    ferry_comm_destroy(comm);
}

static void agrees(ferry_bootstrap *bootstrap, void *user) {
    int failing = *(int *)user; /* -1: none */
    ferry_status mine = bootstrap->rank == failing ? fy_fail(FERRY_E_STATE, "the reason") : FERRY_OK;
    ferry_status got = fy_bootstrap_agree(bootstrap, mine, "making tea");
    if (failing < 0 || failing >= bootstrap->nranks) {
        CHECK_OK(got);
    } else if (bootstrap->rank == failing) {
        CHECK(got == FERRY_E_STATE);
        CHECK_TEXT("the reason");
    } else {
        char rank[32];
        snprintf(rank, sizeof rank, "rank %d", failing);
        CHECK(got == FERRY_E_PEER);
        CHECK_TEXT("making tea");
        CHECK_TEXT(rank);
        CHECK_TEXT("FERRY_E_STATE");
    }
}

/* Word i of the 8 that `from` writes to the part of `to`. Words that differ: thread checkers are blind to single bytes,
 * and to what the compiler turns into a fill. */
static uint64_t word_of(int from, int to, int i) { return (uint64_t)(1000003 * (from + 1) + 1009 * to + i * 3); }

/* Every rank writes to every part and reads every part. */
static void shares(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    int n = comm->nranks, me = comm->rank;
    const size_t bytes = 10001;
    int64_t before = atomic_load(&comm->memory.current);
    void *memory = NULL;
    CHECK_OK(ferry_sym_alloc(comm, bytes, &memory));
    CHECK(atomic_load(&comm->memory.current) - before == (int64_t)fy_symmetric_bytes(n, bytes));
    CHECK((uintptr_t)memory % 4096 == 0);
    unsigned char *own = memory;
    int nonzero = 0;
    for (size_t i = 0; i < bytes; i++) nonzero += own[i] != 0;
    CHECK(nonzero == 0);
    CHECK_OK(ferry_barrier(comm)); /* all have looked */
    for (int r = 0; r < n; r++) {
        void *peer = NULL;
        CHECK_OK(ferry_sym_peer(comm, own + 64 * me, r, &peer));
        for (int i = 0; i < 8; i++) ((uint64_t *)peer)[i] = word_of(me, r, i);
    }
    CHECK_OK(ferry_barrier(comm));
    for (int r = 0; r < n; r++) {
        void *peer = NULL;
        CHECK_OK(ferry_sym_peer(comm, own, r, &peer));
        int wrong = 0;
        for (int i = 0; i < 8 * n; i++) wrong += ((uint64_t *)peer)[i] != word_of(i / 8, r, i % 8);
        CHECK(wrong == 0);
        CHECK(r != me || peer == memory);
    }
    size_t offset = 99;
    fy_symmetric *block = fy_symmetric_find(comm, own, bytes, &offset);
    CHECK(block != NULL && fy_symmetric_numbered(comm, block->number) == block);
    CHECK(fy_symmetric_numbered(comm, 1000) == NULL);
    CHECK(fy_symmetric_find(comm, own + 100, bytes - 100, &offset) != NULL && offset == 100);
    CHECK(fy_symmetric_find(comm, own + 100, bytes + 256, &offset) == NULL);
    CHECK(fy_symmetric_find(comm, &offset, 1, &offset) == NULL);
    void *peer = &peer;
    CHECK(ferry_sym_peer(comm, own, n, &peer) == FERRY_E_INVALID);
    CHECK(ferry_sym_peer(comm, &bytes, 0, &peer) == FERRY_E_INVALID);
    CHECK(peer == &peer);
    /* A rank's part stays until everybody is done with it: the first to free it reads nothing, the others may. */
    CHECK_OK(ferry_barrier(comm));
    if (me > 0) CHECK_OK(ferry_sym_peer(comm, own, 0, &peer));
    if (me > 0) fy_sleep_ns(20000000);
    if (me > 0) CHECK(*(uint64_t *)peer == word_of(0, 0, 0));
    ferry_sym_free(comm, memory);
    ferry_sym_free(comm, NULL);
    CHECK(atomic_load(&comm->memory.current) == before);
    CHECK(fy_symmetric_find(comm, own, 1, &offset) == NULL);
    ferry_comm_destroy(comm);
}

/* An allocator whose blocks of NEIGHBOUR bytes lie one below the other, without gaps. */
enum { NEIGHBOUR = 8192 };

typedef struct neighbours {
    unsigned char *end;
    int given;
} neighbours;

static void *neighbours_alloc(void *user, size_t bytes, size_t align) {
    neighbours *n = user;
    void *memory = NULL;
    if (bytes == NEIGHBOUR) return n->end - (size_t)++n->given * NEIGHBOUR;
    return posix_memalign(&memory, align, bytes) == 0 ? memory : NULL;
}

static void neighbours_free(void *user, void *memory, size_t bytes) {
    (void)user;
    if (bytes != NEIGHBOUR) free(memory);
}

/* Freeing a block leaves the one that ends where it begins. */
static void frees_the_right_one(ferry_bootstrap *bootstrap, void *user) {
    _Alignas(4096) static unsigned char arena[2 * NEIGHBOUR];
    (void)user;
    neighbours n = {.end = arena + sizeof arena};
    ferry_comm_config config = config_of(bootstrap);
    config.allocator = (ferry_allocator){neighbours_alloc, neighbours_free, &n};
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    void *older = NULL, *newer = NULL;
    size_t offset;
    CHECK_OK(ferry_sym_alloc(comm, NEIGHBOUR, &older));
    CHECK_OK(ferry_sym_alloc(comm, NEIGHBOUR, &newer));
    CHECK((unsigned char *)newer + NEIGHBOUR == older);
    ferry_sym_free(comm, older);
    CHECK(fy_symmetric_find(comm, older, 1, &offset) == NULL);
    CHECK(fy_symmetric_find(comm, newer, 1, &offset) != NULL);
    ferry_sym_free(comm, newer);
    ferry_comm_destroy(comm);
}

/* No rank passes barrier b before every rank has come to it. */
static void meets(ferry_bootstrap *bootstrap, void *user) {
    _Atomic int *counter = user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    for (int b = 1; b <= 100; b++) {
        if (b % 10 == comm->rank) fy_sleep_ns(1000000);
        atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
        CHECK_OK(ferry_barrier(comm));
        int seen = atomic_load_explicit(counter, memory_order_relaxed);
        CHECK(seen >= b * comm->nranks && seen <= (b + 1) * comm->nranks);
    }
    ferry_comm_destroy(comm);
}

static void disagrees_about_bytes(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    void *memory = NULL;
    CHECK(ferry_sym_alloc(comm, bootstrap->rank == 1 ? 2048 : 1024, &memory) == FERRY_E_MISMATCH);
    CHECK_TEXT("1024");
    CHECK_TEXT("2048");
    CHECK(memory == NULL);
    /* The communicator is still good. */
    CHECK_OK(ferry_sym_alloc(comm, 1024, &memory));
    CHECK_OK(ferry_barrier(comm));
    ferry_comm_destroy(comm); /* what is left of symmetric memory goes with it */
}

/* ---- Tests ---- */

static const int threads[] = {1, 2, 5, 8}, processes[] = {1, 2, 4};

static void everywhere(rank_body *body, void *user, int from) {
    for (size_t i = 0; i < 4; i++)
        if (threads[i] >= from) run_threads(threads[i], body, user);
    for (size_t i = 0; i < 3; i++)
        if (processes[i] >= from) run_processes(processes[i], body, user);
}

static void test_allgather(void **state) {
    (void)state;
    everywhere(gathers, NULL, 1);
}

static void test_create(void **state) {
    (void)state;
    everywhere(creates, NULL, 1);
}

static void test_agree(void **state) {
    (void)state;
    for (int failing = -1; failing < 3; failing++) everywhere(agrees, &failing, 2);
}

static void test_symmetric(void **state) {
    (void)state;
    everywhere(shares, NULL, 1);
}

static void test_barrier(void **state) {
    (void)state;
    _Atomic int *counter = shared_memory(sizeof *counter);
    for (size_t i = 0; i < 4; i++) {
        atomic_store(counter, 0);
        run_threads(threads[i], meets, counter);
    }
    for (size_t i = 0; i < 3; i++) {
        atomic_store(counter, 0);
        run_processes(processes[i], meets, counter);
    }
    munmap(counter, sizeof *counter);
}

static void test_bytes_mismatch(void **state) {
    (void)state;
    everywhere(disagrees_about_bytes, NULL, 2);
}

static void test_neighbours(void **state) {
    (void)state;
    run_threads(1, frees_the_right_one, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allgather),  cmocka_unit_test(test_create),  cmocka_unit_test(test_agree),
        cmocka_unit_test(test_symmetric),  cmocka_unit_test(test_barrier), cmocka_unit_test(test_bytes_mismatch),
        cmocka_unit_test(test_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
