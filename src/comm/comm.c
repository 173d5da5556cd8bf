/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator: configuration, agreement of all ranks, parts in the order in which they lean on each
 * other. A rank that fails alone still takes part in every collective step up to the one that tells the others. */
#include "comm/comm.h"

#include "comm/control.h"
#include "comm/monitor.h"
#include "core/layer.h"

#include <unistd.h>

enum { MOST_WORKERS = 64, HELLO_MAGIC = 0x4652 };

/* What ranks must agree about, in a layout that no version changes. */
typedef struct hello {
    int32_t magic, rank;
    int32_t version, nranks, backend, same_process;
    int32_t process; /* same_process: the one process */
    int32_t reserved[9];
} hello;

void ferry_comm_config_init(ferry_comm_config *config) {
    if (config) *config = (ferry_comm_config){.size = sizeof *config, .backend = FERRY_CPU};
}

static int default_compute_workers(int nranks) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    long workers = processors / nranks;
    return workers < 1 ? 1 : workers > MOST_WORKERS ? MOST_WORKERS : (int)workers;
}

static void fill_defaults(ferry_comm_config *config) {
    int cpu = config->backend == FERRY_CPU; /* other backends have rules of their own for 0 */
    if (cpu && config->comm_workers == 0) config->comm_workers = 1;
    if (cpu && config->compute_workers == 0)
        config->compute_workers = default_compute_workers(config->bootstrap.nranks);
    if (config->enter_timeout_s == 0) config->enter_timeout_s = 600;
    if (config->progress_timeout_s == 0) config->progress_timeout_s = 60;
}

/* What must hold before peers can be told of anything. */
static ferry_status check_bootstrap(const ferry_comm_config *config) {
    const ferry_bootstrap *bootstrap = &config->bootstrap;
    if (config->size != sizeof *config)
        return fy_fail(FERRY_E_INVALID,
                       "ferry_comm_create: config.size is %zu, expected %zu (set by ferry_comm_config_init)",
                       config->size, sizeof *config);
    if (!bootstrap->allgather) return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.bootstrap.allgather is NULL");
    if (bootstrap->nranks < 1 || bootstrap->nranks > FY_MAX_RANKS)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.bootstrap.nranks is %d, expected 1..%d",
                       bootstrap->nranks, (int)FY_MAX_RANKS);
    if (bootstrap->rank < 0 || bootstrap->rank >= bootstrap->nranks)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.bootstrap.rank is %d, expected 0..%d",
                       bootstrap->rank, bootstrap->nranks - 1);
    return FERRY_OK;
}

/* Threads of the CPU backend; how many multiprocessors there are is for the CUDA backend to say. */
static ferry_status check_workers(const char *field, int workers, ferry_backend backend) {
    int most = backend == FERRY_CPU ? MOST_WORKERS : INT32_MAX;
    if (workers >= 0 && workers <= most) return FERRY_OK;
    return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.%s is %d, expected 0..%d", field, workers, most);
}

static ferry_status check_timeout(const char *field, double seconds) {
    if (seconds >= 0) return FERRY_OK; /* a NaN is not */
    return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.%s is %g, expected seconds >= 0", field, seconds);
}

static ferry_status check_config(const ferry_comm_config *config) {
    if (config->backend != FERRY_CPU && config->backend != FERRY_CUDA)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.backend is %d, expected FERRY_CPU or FERRY_CUDA",
                       (int)config->backend);
    if (!fy_backend_of(config->backend))
        return fy_fail(FERRY_E_UNSUPPORTED, "ferry_comm_create: config.backend is %s, which this build does not have",
                       config->backend == FERRY_CUDA ? "FERRY_CUDA" : "FERRY_CPU");
    if ((int)config->isa < FERRY_ISA_AUTO || config->isa > FERRY_ISA_AVX512)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.isa is %d, expected %d..%d", (int)config->isa,
                       (int)FERRY_ISA_AUTO, (int)FERRY_ISA_AVX512);
    if (!config->allocator.alloc != !config->allocator.free)
        return fy_fail(FERRY_E_INVALID, "ferry_comm_create: config.allocator has only one of alloc and free");
    FY_TRY(check_workers("comm_workers", config->comm_workers, config->backend));
    FY_TRY(check_workers("compute_workers", config->compute_workers, config->backend));
    FY_TRY(check_timeout("enter_timeout_s", config->enter_timeout_s));
    return check_timeout("progress_timeout_s", config->progress_timeout_s);
}

/* The same answer on every rank: the first rank that differs from rank 0. */
static ferry_status compare(const hello *all, int nranks) {
    for (int r = 0; r < nranks; r++) {
        if (all[r].magic != HELLO_MAGIC || all[r].rank != r)
            return fy_fail(FERRY_E_MISMATCH,
                           "ferry_comm_create: the bootstrap's all-gather has rank %d in place %d of %d; expected all "
                           "ranks in order",
                           all[r].magic == HELLO_MAGIC ? all[r].rank : -1, r, nranks);
        const struct {
            const char *field;
            int zero, other;
        } pairs[] = {{"version", all[0].version, all[r].version},
                     {"nranks", all[0].nranks, all[r].nranks},
                     {"backend", all[0].backend, all[r].backend},
                     {"bootstrap.same_process", all[0].same_process, all[r].same_process},
                     {"process (ranks said to be threads of one)", all[0].process, all[r].process}};
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (pairs[i].zero != pairs[i].other)
                return fy_fail(FERRY_E_MISMATCH,
                               "ferry_comm_create: ranks disagree about %s: %d on rank 0, %d on rank %d",
                               pairs[i].field, pairs[i].zero, pairs[i].other, r);
    }
    return FERRY_OK;
}

/* All ranks are there and mean the same. */
static ferry_status greet(const ferry_comm_config *config) {
    const ferry_bootstrap *bootstrap = &config->bootstrap;
    hello all[FY_MAX_RANKS] = {{0}};
    hello own = {.magic = HELLO_MAGIC,
                 .rank = bootstrap->rank,
                 .version = ferry_version_number(),
                 .nranks = bootstrap->nranks,
                 .backend = config->backend,
                 .same_process = bootstrap->same_process != 0,
                 .process = bootstrap->same_process ? (int32_t)getpid() : 0};
    FY_TRY(fy_bootstrap_allgather(bootstrap, &own, all, sizeof own));
    return compare(all, bootstrap->nranks);
}

static ferry_status make_comm(const ferry_comm_config *config, ferry_comm **out) {
    fy_memory memory;
    ferry_comm *comm = NULL;
    FY_TRY(check_config(config));
    fy_memory_init(&memory, &config->allocator);
    FY_TRY(fy_alloc(&memory, sizeof *comm, "a communicator", (void **)&comm));
    fy_memory_init(&comm->memory, &config->allocator);
    fy_memory_count(&comm->memory, sizeof *comm); /* it is the first of what it counts */
    pthread_mutex_init(&comm->raise_lock, NULL);
    comm->rank = config->bootstrap.rank;
    comm->nranks = config->bootstrap.nranks;
    comm->config = *config;
    comm->workers_by_rule = config->comm_workers == 0 && config->compute_workers == 0;
    fill_defaults(&comm->config);
    *out = comm;
    return FERRY_OK;
}

static ferry_status make_parts(ferry_comm *comm) {
    FY_TRY(fy_control_create(comm));
    if (!comm->config.bootstrap.same_process && comm->nranks > 1) FY_TRY(fy_monitor_create(comm));
    ferry_status status = fy_backend_of(comm->config.backend)->comm_create(comm);
    return fy_agree(comm, status, "ferry_comm_create: starting the backend");
}

ferry_status ferry_comm_create(const ferry_comm_config *config, ferry_comm **comm) {
    if (!config || !comm) return fy_fail(FERRY_E_INVALID, "ferry_comm_create: %s is NULL", config ? "comm" : "config");
    FY_TRY(check_bootstrap(config));
    FY_TRY(greet(config));
    ferry_comm *made = NULL;
    ferry_status status = make_comm(config, &made);
    status = fy_bootstrap_agree(&config->bootstrap, status, "ferry_comm_create");
    if (status == FERRY_OK) status = make_parts(made);
    if (status != FERRY_OK) {
        ferry_comm_destroy(made);
        return status;
    }
    *comm = made;
    return FERRY_OK;
}

void ferry_comm_destroy(ferry_comm *comm) {
    if (!comm) return;
    if (comm->control) fy_control_leave(comm);
    if (comm->backend) fy_backend_of(comm->config.backend)->comm_destroy(comm);
    fy_monitor_destroy(comm);
    while (comm->symmetric) fy_symmetric_destroy(comm, comm->symmetric);
    pthread_mutex_destroy(&comm->raise_lock);
    const ferry_allocator hooks = comm->memory.hooks;
    hooks.free(hooks.user, comm, sizeof *comm);
}

int ferry_comm_rank(const ferry_comm *comm) { return comm ? comm->rank : -1; }

int ferry_comm_size(const ferry_comm *comm) { return comm ? comm->nranks : -1; }
