/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are late, leave, die or stop: every wait ends, on every rank, with a sentence that names them. */
#include "test_comm.h"

#include "comm/control.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static ferry_comm *comm_with(const ferry_bootstrap *bootstrap, double enter_timeout_s) {
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    config.enter_timeout_s = enter_timeout_s;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) exit(1);
    return comm;
}

/* Until peers have raised a fault here. */
static ferry_status await_fault(ferry_comm *comm) {
    int64_t start = fy_now_ns();
    while (!fy_aborted(comm) && seconds_since(start) < 20) fy_sleep_ns(1000000);
    return ferry_comm_error(comm);
}

/* ---- Late ---- */

static void is_late(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 0.2);
    int64_t start = fy_now_ns();
    if (comm->rank == 1) {
        CHECK(await_fault(comm) == FERRY_E_TIMEOUT);
        CHECK_TEXT("found it and told rank 1");
    } else {
        CHECK(ferry_barrier(comm) == FERRY_E_TIMEOUT);
        /* A rank that was late itself waits less when another has told it. */
        int told = strstr(ferry_last_error(), "and told rank") != NULL;
        CHECK((told || seconds_since(start) >= 0.199) && seconds_since(start) < 10);
    }
    /* Who found it first differs; what was found does not. */
    CHECK(ferry_comm_error(comm) == FERRY_E_TIMEOUT);
    CHECK_TEXT("waited 0.2 s for rank 1");
    CHECK_TEXT("its barrier, expected 1, seen 0");
    CHECK(ferry_barrier(comm) == FERRY_E_TIMEOUT);
    void *memory = NULL;
    CHECK(ferry_sym_alloc(comm, 1, &memory) == FERRY_E_TIMEOUT);
    ferry_comm_destroy(comm);
}

static void test_late(void **state) {
    (void)state;
    run_threads(2, is_late, NULL);
    run_threads(5, is_late, NULL);
    run_processes(2, is_late, NULL);
    run_processes(4, is_late, NULL);
}

/* ---- Leaves ---- */

static void leaves(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    CHECK_OK(ferry_barrier(comm));
    int64_t start = fy_now_ns();
    if (comm->rank == 1) {
        fy_sleep_ns(50000000);
    } else {
        CHECK(ferry_barrier(comm) == FERRY_E_PEER);
        CHECK(seconds_since(start) < 5);
        CHECK_TEXT("rank 1: it left");
        CHECK(await_fault(comm) == FERRY_E_PEER);
    }
    ferry_comm_destroy(comm);
}

/* The last thing that a rank does before it leaves is not lost. */
static void leaves_in_order(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    for (int i = 0; i < 20; i++) {
        ferry_comm *comm = comm_with(bootstrap, 30);
        if (comm->rank == 0) fy_sleep_ns(2000000);
        CHECK_OK(ferry_barrier(comm));
        ferry_comm_destroy(comm);
    }
}

/* The same in slow motion: what had come before `left` was seen may have been missed by the poll before. */
static void looks_once_more(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    if (comm->rank == 0) {
        fy_wait wait;
        fy_wait_begin(&wait, comm, FERRY_PHASE_PULL, 1, "a row", 30);
        while (!atomic_load_explicit(&fy_control_of(comm, 1)->left, memory_order_acquire)) fy_sleep_ns(1000000);
        CHECK(fy_wait_turn(&wait, 1, 0) == FERRY_OK);
        CHECK(fy_wait_turn(&wait, 1, 0) == FERRY_E_PEER);
        CHECK_TEXT(
            "phase pull: rank 0 waited for rank 1: it left (destroyed its communicator) before a row, expected 1, "
            "seen 0");
    }
    ferry_comm_destroy(comm);
}

/* Turns until `seconds` have passed, or until one fails. */
static ferry_status turns(fy_wait *wait, double seconds) {
    int64_t until = fy_deadline_ns(seconds);
    while (fy_now_ns() < until)
        if (fy_wait_turn(wait, 1, 0) != FERRY_OK) return ferry_comm_error(wait->comm);
    return FERRY_OK;
}

/* A process that is stopped and goes on, with its peers, has not waited meanwhile; what it waits then is counted. */
static void pauses(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    fy_wait wait;
    fy_wait_begin(&wait, comm, FERRY_PHASE_PULL, 0, "a row", 1);
    CHECK_OK(turns(&wait, 0.2));
    fy_sleep_ns(1500000000); /* to the wait like a stop of the process */
    CHECK_OK(turns(&wait, 0.2));
    CHECK(turns(&wait, 20) == FERRY_E_TIMEOUT);
    CHECK_TEXT("phase pull: rank 0 waited 1 s for rank 0: a row, expected 1, seen 0");
    ferry_comm_destroy(comm);
}

static void test_pauses(void **state) {
    (void)state;
    run_threads(1, pauses, NULL);
}

/* A rank that ends after it left is no fault. */
static void ends_cleanly(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    CHECK_OK(ferry_barrier(comm));
    if (comm->rank == 0) {
        fy_sleep_ns(400000000);
        CHECK_OK(ferry_comm_error(comm));
    }
    ferry_comm_destroy(comm);
}

static void test_leaves(void **state) {
    (void)state;
    run_threads(2, leaves, NULL);
    run_threads(8, leaves, NULL);
    run_processes(2, leaves, NULL);
    run_processes(4, leaves, NULL);
    run_threads(5, leaves_in_order, NULL);
    run_processes(2, leaves_in_order, NULL);
    run_threads(2, looks_once_more, NULL);
    run_processes(2, looks_once_more, NULL);
    run_processes(2, ends_cleanly, NULL);
}

/* ---- Raises ---- */

enum { RAISERS = 4 };

typedef struct raiser {
    pthread_t thread;
    ferry_comm *comm;
    int number;
} raiser;

static void *raises(void *argument) {
    raiser *self = argument;
    fy_fault fault = {.status = FERRY_E_STATE,
                      .phase = FERRY_PHASE_PULL,
                      .waiting_rank = self->comm->rank,
                      .awaited_rank = self->number,
                      .expected = self->number,
                      .seen = self->number};
    snprintf(fault.what, sizeof fault.what, "reason %d", self->number);
    fy_raise(self->comm, &fault);
    CHECK(fy_aborted(self->comm)); /* whoever returns from raising finds a fault */
    return NULL;
}

static void raises_together(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    raiser raisers[RAISERS];
    CHECK(!fy_aborted(comm));
    CHECK_OK(ferry_barrier(comm));
    for (int i = 0; i < RAISERS; i++) {
        raisers[i] = (raiser){.comm = comm, .number = comm->rank * RAISERS + i};
        CHECK(pthread_create(&raisers[i].thread, NULL, raises, &raisers[i]) == 0);
    }
    for (int i = 0; i < RAISERS; i++) pthread_join(raisers[i].thread, NULL);
    CHECK(ferry_comm_error(comm) == FERRY_E_STATE);
    CHECK_TEXT("phase pull");
    /* One record, not a mixture. */
    int reason = -1, rank = -1, expected = -1, seen = -1, waiting = -1;
    CHECK(sscanf(ferry_last_error(), "phase pull: rank %d waited for rank %d: reason %d, expected %d, seen %d",
                 &waiting, &rank, &reason, &expected, &seen) == 5);
    CHECK(reason == rank && reason == expected && reason == seen && reason / RAISERS == waiting);
    ferry_comm_destroy(comm);
}

/* A wait that ends because of another's fault says both. */
static void is_interrupted(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    CHECK_OK(ferry_barrier(comm));
    if (comm->rank == 1) {
        fy_sleep_ns(30000000);
        raises(&(raiser){.comm = comm, .number = 7});
    } else {
        _Atomic uint64_t never = 3;
        int64_t start = fy_now_ns();
        CHECK(fy_wait_at_least(comm, &never, 3, FERRY_PHASE_SUM, 1, "rows", 30) == FERRY_OK);
        CHECK(fy_wait_at_least(comm, &never, 5, FERRY_PHASE_SUM, 1, "rows", 30) == FERRY_E_STATE);
        CHECK(seconds_since(start) < 5);
        CHECK_TEXT("rank 7: reason 7");
        CHECK_TEXT("rank 1 found it");
        CHECK_TEXT("was waiting for rank 1 in phase sum: rows, expected 5, seen 3");
    }
    ferry_comm_destroy(comm);
}

/* A rank that has been told of a fault and leaves at once is not the cause of what others see. */
static void leaves_after_fault(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    for (int i = 0; i < 20; i++) {
        ferry_comm *comm = comm_with(bootstrap, 30);
        CHECK_OK(ferry_barrier(comm));
        if (comm->rank == 1) {
            /* As if rank 1 were interrupted after it had told rank 2 alone. */
            fy_control *control = fy_control_of(comm, 2);
            comm->raised = 1;
            control->faults[1] = (fy_fault){.status = FERRY_E_STATE, .waiting_rank = 1, .awaited_rank = 9};
            strcpy(control->faults[1].what, "the cause");
            atomic_store_explicit(&control->abort, 2, memory_order_release);
        }
        if (comm->rank == 2) {
            CHECK(await_fault(comm) == FERRY_E_STATE);
        } else {
            _Atomic uint64_t never = 0;
            CHECK(fy_wait_at_least(comm, &never, 1, FERRY_PHASE_SUM, 2, "rows", 30) == FERRY_E_STATE);
            CHECK_TEXT("rank 9: the cause");
        }
        ferry_comm_destroy(comm);
    }
}

static void test_raise(void **state) {
    (void)state;
    run_threads(1, raises_together, NULL);
    run_threads(5, raises_together, NULL);
    run_processes(4, raises_together, NULL);
    run_threads(2, is_interrupted, NULL);
    run_processes(2, is_interrupted, NULL);
    run_threads(5, leaves_after_fault, NULL);
    run_processes(3, leaves_after_fault, NULL);
}

/* ---- Dies, stops ---- */

/* What rank 1 tells the test's process, and what the others measured. */
typedef struct scene {
    _Atomic int ready;
    _Atomic int64_t struck_ns; /* when rank 1 was killed or stopped */
    _Atomic int64_t noticed_ns;
    _Atomic int over; /* rank 1 may look */
    double timeout_s;
    ferry_status expected;
    const char *text;
    int pid;
} scene;

static void waits_for_victim(ferry_bootstrap *bootstrap, void *user) {
    scene *shared = user;
    ferry_comm *comm = comm_with(bootstrap, shared->timeout_s);
    CHECK_OK(ferry_barrier(comm));
    atomic_fetch_add(&shared->ready, 1);
    if (comm->rank == 1) {
        while (!atomic_load(&shared->over)) fy_sleep_ns(1000000);
        CHECK(ferry_comm_error(comm) == shared->expected);
    } else {
        CHECK(ferry_barrier(comm) == shared->expected);
        int64_t none = 0;
        atomic_compare_exchange_strong(&shared->noticed_ns, &none, fy_now_ns());
        CHECK_TEXT("rank 1");
        CHECK_TEXT(shared->text);
    }
    ferry_comm_destroy(comm);
}

static double strike(int nranks, int signal_number, scene *shared) {
    pid_t ranks[16];
    const char *job = new_job();
    for (int r = 0; r < nranks; r++) ranks[r] = start_rank(r, nranks, job, 30, waits_for_victim, shared);
    while (atomic_load(&shared->ready) < nranks) fy_sleep_ns(1000000);
    fy_sleep_ns(20000000);
    atomic_store(&shared->struck_ns, fy_now_ns());
    kill(ranks[1], signal_number);
    for (int r = 0; r < nranks; r++)
        if (r != 1) assert_int_equal(exit_code_of(ranks[r]), 0);
    atomic_store(&shared->over, 1);
    if (signal_number == SIGSTOP) kill(ranks[1], SIGCONT);
    assert_int_equal(exit_code_of(ranks[1]), signal_number == SIGSTOP ? 0 : 128 + signal_number);
    return (double)(atomic_load(&shared->noticed_ns) - atomic_load(&shared->struck_ns)) * 1e-9;
}

static void test_killed(void **state) {
    (void)state;
    scene *shared = shared_memory(sizeof *shared);
    for (int nranks = 2; nranks <= 4; nranks += 2) {
        *shared = (scene){.timeout_s = 30, .expected = FERRY_E_PEER, .text = "ended"};
        double seconds = strike(nranks, SIGKILL, shared);
        print_message("killed rank of %d noticed after %.1f ms\n", nranks, seconds * 1e3);
        assert_true(seconds < 1);
    }
    munmap(shared, sizeof *shared);
}

static void test_stopped(void **state) {
    (void)state;
    scene *shared = shared_memory(sizeof *shared);
    *shared = (scene){.timeout_s = 0.5, .expected = FERRY_E_TIMEOUT, .text = "waited 0.5 s for rank 1"};
    double seconds = strike(2, SIGSTOP, shared);
    assert_true(seconds > 0.4 && seconds < 5);
    munmap(shared, sizeof *shared);
}

/* pidfd_open fails from here on, as where peers live in other pid namespaces. */
static void forbid_pidfd(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) exit(1);
    if (syscall(SYS_pidfd_open, getpid(), 0) >= 0 || errno != ENOSYS) exit(1);
}

static void waits_without_pidfd(ferry_bootstrap *bootstrap, void *user) {
    forbid_pidfd();
    waits_for_victim(bootstrap, user);
}

static void ends_without_pidfd(ferry_bootstrap *bootstrap, void *user) {
    forbid_pidfd();
    ends_cleanly(bootstrap, user);
}

static void test_heartbeat(void **state) {
    (void)state;
    run_processes(2, ends_without_pidfd, NULL);
    scene *shared = shared_memory(sizeof *shared);
    *shared = (scene){.timeout_s = 30, .expected = FERRY_E_PEER, .text = "no heartbeat"};
    pid_t ranks[2];
    const char *job = new_job();
    for (int r = 0; r < 2; r++) ranks[r] = start_rank(r, 2, job, 30, waits_without_pidfd, shared);
    while (atomic_load(&shared->ready) < 2) fy_sleep_ns(1000000);
    int64_t start = fy_now_ns();
    kill(ranks[1], SIGKILL);
    assert_int_equal(exit_code_of(ranks[0]), 0);
    assert_true(seconds_since(start) > 4 && seconds_since(start) < 15);
    assert_int_equal(exit_code_of(ranks[1]), 128 + SIGKILL);
    munmap(shared, sizeof *shared);
}

/* Ends without a word. */
static void exits(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm *comm = comm_with(bootstrap, 30);
    CHECK_OK(ferry_barrier(comm));
    if (comm->rank == 1) _exit(0);
    CHECK(ferry_barrier(comm) == FERRY_E_PEER);
    CHECK_TEXT("rank 1: its process");
    ferry_comm_destroy(comm);
}

static void test_exits(void **state) {
    (void)state;
    run_processes(4, exits, NULL);
}

/* Signals stay the application's: no thread of the library takes one. */
static void takes_no_signal(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    sigset_t every, pending;
    ferry_comm *comm = comm_with(bootstrap, 30);
    sigfillset(&every);
    CHECK(pthread_sigmask(SIG_SETMASK, &every, NULL) == 0);
    const int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGPIPE, SIGCHLD};
    for (int i = 0; i < 5; i++) {
        struct sigaction action;
        CHECK(kill(getpid(), signals[i]) == 0);
        CHECK(sigaction(signals[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    }
    fy_sleep_ns(250000000);
    CHECK(sigpending(&pending) == 0);
    for (int i = 0; i < 4; i++) CHECK(sigismember(&pending, signals[i]) == 1);
    CHECK_OK(ferry_barrier(comm));
    ferry_comm_destroy(comm);
}

static void test_signals(void **state) {
    (void)state;
    run_processes(2, takes_no_signal, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),      cmocka_unit_test(test_leaves),  cmocka_unit_test(test_raise),
        cmocka_unit_test(test_killed),    cmocka_unit_test(test_stopped), cmocka_unit_test(test_exits),
        cmocka_unit_test(test_heartbeat), cmocka_unit_test(test_signals), cmocka_unit_test(test_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
