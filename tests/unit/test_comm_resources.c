/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator takes it gives back: memory, descriptors, names, mappings; and every failing allocation is an
 * error on all ranks with nothing lost. */
#include "test_comm.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/statvfs.h>

/* ---- Counting ---- */

static int entries_of(const char *path) {
    DIR *folder = opendir(path);
    assert_non_null(folder);
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Names of segments of process `pid`: with those that a killed process of that number has left. */
static int segments_of(int pid) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "ferry-%u-%d-", (unsigned)geteuid(), pid);
    DIR *folder = opendir("/dev/shm");
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(folder);
    return count;
}

/* Mappings of segments (their names are gone: "(deleted)"), which a leak would leave. */
static int mapped_segments(void) {
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    int count = 0;
    while (fgets(line, sizeof line, file)) count += strstr(line, "/dev/shm/ferry-") != NULL;
    fclose(file);
    return count;
}

/* An allocator that fails the N-th time, and knows what it has given out. Used by several threads. */
typedef struct counter {
    _Atomic int calls, held;
    _Atomic int64_t bytes;
    int fail_at; /* 1, 2, ...; 0: never */
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    counter *self = user;
    if (atomic_fetch_add(&self->calls, 1) + 1 == self->fail_at) return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, align, bytes) != 0) return NULL;
    memset(memory, 0xa5, bytes);
    atomic_fetch_add(&self->held, 1);
    atomic_fetch_add(&self->bytes, (int64_t)bytes);
    return memory;
}

static void counted_free(void *user, void *memory, size_t bytes) {
    counter *self = user;
    memset(memory, 0x5a, bytes);
    free(memory);
    atomic_fetch_sub(&self->held, 1);
    atomic_fetch_sub(&self->bytes, (int64_t)bytes);
}

/* ---- Create and destroy ---- */

static void cycle(ferry_bootstrap *bootstrap, counter *counts) {
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    void *memory = NULL;
    config.allocator = (ferry_allocator){counted_alloc, counted_free, counts};
    CHECK_OK(ferry_comm_create(&config, &comm));
    CHECK_OK(ferry_sym_alloc(comm, 5000, &memory));
    CHECK_OK(ferry_barrier(comm));
    ferry_sym_free(comm, memory);
    ferry_comm_destroy(comm);
}

/* What this process has; taken while no rank is in the middle of something. */
typedef struct inventory {
    int descriptors, mappings;
    size_t heap;
} inventory;

static inventory take_inventory(ferry_bootstrap *bootstrap) {
    int mine = 0, all[16];
    CHECK(bootstrap->allgather(bootstrap->user, &mine, all, sizeof mine) == 0);
    inventory taken = {0};
    if (bootstrap->rank == 0 || !bootstrap->same_process) { /* one thread only: looking opens files itself */
        taken.descriptors = entries_of("/proc/self/fd");
        taken.mappings = mapped_segments();
        taken.heap = mallinfo2().uordblks;
    }
    CHECK(bootstrap->allgather(bootstrap->user, &mine, all, sizeof mine) == 0);
    return taken;
}

/* The C library keeps a few blocks back as it pleases, for a while or for good, so the most that the process had early
 * is compared with the least that it has late; a leak is 16 bytes or more in each of the 220 cycles between. */
static void cycles(ferry_bootstrap *bootstrap, void *user) {
    counter *counts = (counter *)user + bootstrap->rank;
    inventory early = {0}, late = {0};
    int segments = segments_of(getpid());
    for (int i = 0; i <= 500; i++) {
        int is_early = i >= 100 && i<200, is_late = i> 400;
        if (i == 0 || ((is_early || is_late) && i % 10 == 0)) {
            inventory now = take_inventory(bootstrap); /* the first one warms up the C library */
            CHECK(now.mappings == 0);
            if (is_early && now.heap >= early.heap) early = now;
            if (is_late && (i == 410 || now.heap < late.heap)) late = now;
            CHECK(!is_late || now.descriptors == early.descriptors);
        }
        cycle(bootstrap, counts);
    }
    CHECK(late.heap < early.heap + 3500);
    CHECK(segments_of(getpid()) == segments);
    if (!bootstrap->same_process) CHECK(atomic_load(&counts->held) == 0);
}

static void test_cycles(void **state) {
    (void)state;
    counter counts[8] = {{0}};
    int descriptors = entries_of("/proc/self/fd");
    run_threads(1, cycles, counts);
    run_threads(3, cycles, counts);
    for (int r = 0; r < 8; r++) assert_int_equal(atomic_load(&counts[r].held), 0);
    run_processes(1, cycles, counts);
    run_processes(2, cycles, counts);
    run_processes(4, cycles, counts);
    assert_int_equal(entries_of("/proc/self/fd"), descriptors);
}

/* What the communicator says that it holds is what its allocator gave (threads: all of its memory is the allocator's).
 */
static void counts_truly(ferry_bootstrap *bootstrap, void *user) {
    counter *counts = (counter *)user + bootstrap->rank;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    void *memory = NULL;
    config.allocator = (ferry_allocator){counted_alloc, counted_free, counts};
    CHECK_OK(ferry_comm_create(&config, &comm));
    CHECK_OK(ferry_sym_alloc(comm, 100000, &memory));
    CHECK(atomic_load(&comm->memory.current) == atomic_load(&counts->bytes));
    CHECK_OK(ferry_barrier(comm));
    ferry_sym_free(comm, memory);
    CHECK(atomic_load(&comm->memory.peak) - atomic_load(&comm->memory.current) ==
          (int64_t)fy_symmetric_bytes(comm->nranks, 100000));
    ferry_comm_destroy(comm);
}

static void test_counts(void **state) {
    (void)state;
    counter counts[4] = {{0}};
    run_threads(1, counts_truly, counts);
    run_threads(4, counts_truly, counts);
    for (int r = 0; r < 4; r++) assert_int_equal(atomic_load(&counts[r].held), 0);
}

/* A program that a rank starts inherits nothing. */
static void closes_on_exec(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    int found = 0, open[256];
    for (int fd = 0; fd < 256; fd++) open[fd] = fcntl(fd, F_GETFD);
    CHECK_OK(ferry_comm_create(&config, &comm));
    for (int fd = 0; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (open[fd] != -1 || flags == -1) continue;
        CHECK(flags & FD_CLOEXEC);
        found++;
    }
    CHECK(found >= bootstrap->nranks); /* a wake-up and a pidfd per peer */
    CHECK_OK(ferry_barrier(comm));     /* a peer that has gone has no pidfd */
    ferry_comm_destroy(comm);
}

static int closing_on_exec(void) {
    int closing = 0;
    for (int fd = 0; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        closing += flags != -1 && (flags & FD_CLOEXEC);
    }
    return closing;
}

/* The sockets of the bootstrap likewise. */
static void test_exec(void **state) {
    (void)state;
    run_processes(3, closes_on_exec, NULL);
    const char *job = new_job();
    int before = entries_of("/proc/self/fd"), closing = closing_on_exec();
    pid_t other = start_rank(1, 2, job, 20, closes_on_exec, NULL);
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap bootstrap;
    set_rank(0, 2, job);
    assert_int_equal(ferry_env_bootstrap_create(20, &env, &bootstrap), FERRY_OK);
    assert_int_equal(entries_of("/proc/self/fd"), before + 1);
    assert_int_equal(closing_on_exec(), closing + 1);
    closes_on_exec(&bootstrap, NULL);
    ferry_env_bootstrap_destroy(env);
    assert_int_equal(exit_code_of(other), 0);
    assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
    assert_int_equal(entries_of("/proc/self/fd"), before);
}

/* ---- The N-th allocation fails ---- */

typedef struct shortage {
    counter counts[8];
    int victim;
    _Atomic int succeeded;
} shortage;

static void runs_short(ferry_bootstrap *bootstrap, void *user) {
    shortage *shared = user;
    counter *counts = &shared->counts[bootstrap->rank];
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    void *memory = NULL;
    int segments = segments_of(getpid());
    config.allocator = (ferry_allocator){counted_alloc, counted_free, counts};
    ferry_status status = ferry_comm_create(&config, &comm);
    CHECK((status == FERRY_OK) == (comm != NULL));
    if (status == FERRY_OK) {
        status = ferry_sym_alloc(comm, 3000, &memory);
        CHECK((status == FERRY_OK) == (memory != NULL));
        CHECK_OK(ferry_comm_error(comm)); /* a failed allocation ends nothing */
        CHECK_OK(ferry_barrier(comm));
    }
    ferry_comm_destroy(comm);
    if (status == FERRY_OK)
        atomic_fetch_add(&shared->succeeded, 1);
    else if (bootstrap->rank == shared->victim)
        CHECK(status == FERRY_E_MEMORY);
    else
        CHECK(status == FERRY_E_MEMORY || status == FERRY_E_PEER);
    if (!bootstrap->same_process) CHECK(atomic_load(&counts->held) == 0);
    CHECK(segments_of(getpid()) == segments);
}

static int fail_until_success(void (*run)(int, rank_body *, void *), int nranks, int victim) {
    shortage *shared = shared_memory(sizeof *shared);
    int n = 0, succeeded = 0;
    while (!succeeded) {
        assert_true(++n < 100);
        *shared = (shortage){.victim = victim};
        shared->counts[victim].fail_at = n;
        run(nranks, runs_short, shared);
        succeeded = atomic_load(&shared->succeeded);
        assert_true(succeeded == 0 || succeeded == nranks); /* all or nobody */
        for (int r = 0; r < nranks; r++) assert_int_equal(atomic_load(&shared->counts[r].held), 0);
    }
    munmap(shared, sizeof *shared);
    return n - 1;
}

static void test_allocation_fails(void **state) {
    (void)state;
    assert_true(fail_until_success(run_threads, 1, 0) >= 5);
    for (int victim = 0; victim < 3; victim++) assert_true(fail_until_success(run_threads, 3, victim) >= 5);
    assert_true(fail_until_success(run_processes, 1, 0) >= 3);
    for (int victim = 0; victim < 2; victim++) assert_true(fail_until_success(run_processes, 2, victim) >= 4);
}

/* ---- No room ---- */

static void wants_too_much(ferry_bootstrap *bootstrap, void *user) {
    size_t bytes = *(size_t *)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    void *memory = NULL;
    char wanted[64];
    int segments = segments_of(getpid());
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    int64_t before = atomic_load(&comm->memory.current);
    CHECK(ferry_sym_alloc(comm, bytes, &memory) == FERRY_E_MEMORY);
    CHECK(memory == NULL);
    snprintf(wanted, sizeof wanted, "%zu bytes", bytes);
    CHECK_TEXT(wanted);
    if (!bootstrap->same_process && bytes < (size_t)1 << 60) CHECK_TEXT("/dev/shm has");
    CHECK(atomic_load(&comm->memory.current) == before);
    CHECK_OK(ferry_sym_alloc(comm, 100, &memory));
    CHECK_OK(ferry_barrier(comm));
    ferry_comm_destroy(comm);
    CHECK(segments_of(getpid()) == segments);
}

static void test_no_room(void **state) {
    (void)state;
    struct statvfs fs;
    assert_int_equal(statvfs("/dev/shm", &fs), 0);
    size_t total = (size_t)fs.f_blocks * fs.f_frsize;
    size_t sizes[] = {(total + (1 << 20)) & ~(size_t)255, (size_t)1 << 62, SIZE_MAX};
    for (int i = 0; i < 3; i++) {
        run_processes(1, wants_too_much, &sizes[i]);
        run_processes(2, wants_too_much, &sizes[i]);
        if (i == 2) run_threads(2, wants_too_much, &sizes[i]); /* never comes to the allocator */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cycles),           cmocka_unit_test(test_counts),  cmocka_unit_test(test_exec),
        cmocka_unit_test(test_allocation_fails), cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
