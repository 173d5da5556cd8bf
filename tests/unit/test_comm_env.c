/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that find each other, or do not: variables, wrong sizes, doubles, deadlines, starting the same job again. */
#include "test_comm.h"

#include "comm/bootstrap.h"

/* ---- Variables ---- */

static void expect_variable(const char *rank, const char *size, const char *job, const char *host, const char *port,
                            const char *text) {
    const char *names[] = {"RANK", "WORLD_SIZE", "FERRY_JOB", "MASTER_ADDR", "MASTER_PORT"};
    const char *values[] = {rank, size, job, host, port};
    for (int i = 0; i < 5; i++) {
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    }
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap bootstrap;
    assert_int_equal(ferry_env_bootstrap_create(1, &env, &bootstrap), FERRY_E_INVALID);
    assert_null(env);
    assert_non_null(strstr(ferry_last_error(), text));
}

static void test_variables(void **state) {
    (void)state;
    expect_variable("0", NULL, "a", NULL, NULL, "WORLD_SIZE is not set");
    expect_variable("0", "two", "a", NULL, NULL, "WORLD_SIZE is 'two'");
    expect_variable("0", "0", "a", NULL, NULL, "WORLD_SIZE is '0'");
    expect_variable("0", "99999", "a", NULL, NULL, "WORLD_SIZE is '99999'");
    expect_variable(NULL, "2", "a", NULL, NULL, "RANK is not set");
    expect_variable("", "2", "a", NULL, NULL, "RANK is ''");
    expect_variable("2", "2", "a", NULL, NULL, "RANK is '2', expected an integer 0..1");
    expect_variable("-1", "2", "a", NULL, NULL, "RANK is '-1'");
    expect_variable("1x", "2", "a", NULL, NULL, "RANK is '1x'");
    expect_variable("99999999999999999999", "2", "a", NULL, NULL, "RANK is '99999999999999999999'");
    expect_variable("0", "2", "", "localhost", "1", "FERRY_JOB is ''");
    expect_variable("0", "2", NULL, NULL, "1", "MASTER_ADDR is not set");
    expect_variable("0", "2", NULL, "localhost", NULL, "MASTER_PORT is not set");
    expect_variable("0", "2", NULL, "localhost", "http", "MASTER_PORT is 'http'");
    expect_variable("0", "2", NULL, "localhost", "70000", "MASTER_PORT is '70000'");

    /* One rank needs no name and no socket. */
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    set_rank(0, 1, "unused");
    unsetenv("FERRY_JOB");
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap bootstrap;
    assert_int_equal(ferry_env_bootstrap_create(1, &env, &bootstrap), FERRY_OK);
    int mine = 7, all = 0;
    assert_int_equal(bootstrap.allgather(bootstrap.user, &mine, &all, sizeof mine), 0);
    assert_int_equal(all, 7);
    ferry_env_bootstrap_destroy(env);
    ferry_env_bootstrap_destroy(NULL);
}

/* ---- Ranks that do not fit ---- */

/* One process of a start that must fail: what it says it is, and what it must be told. */
typedef struct misfit {
    int rank, nranks;
    double after_s, timeout_s;
    ferry_status expected;
    const char *text;
} misfit;

static void expect_misfits(const misfit *all, int count, double within_s) {
    pid_t pids[8];
    const char *job = new_job();
    int64_t start = fy_now_ns();
    for (int i = 0; i < count; i++) {
        fflush(NULL);
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] > 0) continue;
        ferry_env_bootstrap *env = NULL;
        ferry_bootstrap bootstrap;
        fy_sleep_ns((int64_t)(all[i].after_s * 1e9));
        set_rank(all[i].rank, all[i].nranks, job);
        CHECK(ferry_env_bootstrap_create(all[i].timeout_s, &env, &bootstrap) == all[i].expected);
        CHECK_TEXT(all[i].text);
        CHECK(env == NULL);
        exit(atomic_load(&failed_checks) != 0);
    }
    int failed = 0;
    for (int i = 0; i < count; i++) failed += exit_code_of(pids[i]) != 0;
    assert_int_equal(failed, 0);
    assert_true(seconds_since(start) < within_s);
}

static void test_world_sizes_differ(void **state) {
    (void)state;
    const char *text = "WORLD_SIZE is 3 on rank 0 and 4 on rank 1";
    const misfit all[] = {{0, 3, 0, 30, FERRY_E_MISMATCH, text},
                          {1, 4, 0.1, 30, FERRY_E_MISMATCH, text},
                          {2, 3, 0.3, 30, FERRY_E_MISMATCH, text}};
    expect_misfits(all, 3, 10);
}

static void test_rank_twice(void **state) {
    (void)state;
    const char *text = "two processes say RANK 1";
    const misfit ones[] = {{0, 3, 0, 30, FERRY_E_INVALID, text},
                           {1, 3, 0, 30, FERRY_E_INVALID, text},
                           {1, 3, 0, 30, FERRY_E_INVALID, text},
                           {2, 3, 1, 30, FERRY_E_INVALID, text}};
    expect_misfits(ones, 4, 10);
    text = "two processes say RANK 0";
    const misfit zeros[] = {{0, 3, 0, 30, FERRY_E_INVALID, text},
                            {0, 3, 0, 30, FERRY_E_INVALID, text},
                            {1, 3, 0, 30, FERRY_E_INVALID, text}};
    expect_misfits(zeros, 3, 20);
}

static void test_rank_missing(void **state) {
    (void)state;
    const char *text = "rank 0 waited 0.5 s, 2 of 4 ranks did not come (the first is rank 1)";
    const misfit late[] = {{0, 4, 0, 0.5, FERRY_E_TIMEOUT, text}, {3, 4, 0, 30, FERRY_E_TIMEOUT, text}};
    expect_misfits(late, 2, 10);
    const misfit alone[] = {{1, 2, 0, 0.3, FERRY_E_TIMEOUT, "rank 1 waited 0.3 s for rank 0 of 2"}};
    expect_misfits(alone, 1, 10);
}

/* ---- All-gathers that fail ---- */

static ferry_status gather(ferry_bootstrap *bootstrap, size_t bytes) {
    static unsigned char mine[8192], all[8192 * 8];
    return fy_bootstrap_allgather(bootstrap, mine, all, bytes);
}

static void gathers_other_sizes(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    unsigned char mine[64] = {0}, all[64 * 16];
    CHECK(fy_bootstrap_allgather(bootstrap, mine, all, bootstrap->rank == 1 ? 64 : 32) == FERRY_E_MISMATCH);
    CHECK_TEXT("gathers 64");
    CHECK_TEXT("32");
    CHECK(fy_bootstrap_allgather(bootstrap, mine, all, 32) == FERRY_E_MISMATCH);
    CHECK_TEXT("gathers 64"); /* broken for good, for that reason */
}

static void loses_rank_1(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    CHECK_OK(gather(bootstrap, 8192));
    if (bootstrap->rank == 1) _exit(0);
    int64_t start = fy_now_ns();
    CHECK(gather(bootstrap, 8) == FERRY_E_PEER);
    CHECK_TEXT("rank 1 ended");
    CHECK(seconds_since(start) < 5);
}

static void loses_rank_0(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    CHECK_OK(gather(bootstrap, 8));
    if (bootstrap->rank == 0) _exit(0);
    CHECK(gather(bootstrap, 8) == FERRY_E_PEER);
    CHECK_TEXT("rank 0 ended");
}

static void waits_in_vain(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    if (bootstrap->rank == 1) {
        fy_sleep_ns(800000000);
        return;
    }
    CHECK(gather(bootstrap, 8) == FERRY_E_TIMEOUT);
    CHECK_TEXT("rank 1");
}

static int returns_five(void *user, const void *mine, void *all, size_t bytes) {
    (void)user, (void)mine, (void)all, (void)bytes;
    return 5;
}

static void fails_in_its_own_way(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    bootstrap->allgather = returns_five;
    CHECK(gather(bootstrap, 8) == FERRY_E_PEER);
    CHECK_TEXT("returned 5");
    CHECK(fy_bootstrap_agree(bootstrap, fy_fail(FERRY_E_STATE, "own reason"), "x") == FERRY_E_STATE);
    CHECK_TEXT("own reason");
}

static void run_processes_for(int nranks, double timeout_s, rank_body *body) {
    pid_t ranks[8];
    const char *job = new_job();
    for (int r = 0; r < nranks; r++) ranks[r] = start_rank(r, nranks, job, timeout_s, body, NULL);
    for (int r = 0; r < nranks; r++) assert_int_equal(exit_code_of(ranks[r]), 0);
}

static void test_allgather_fails(void **state) {
    (void)state;
    run_threads(3, gathers_other_sizes, NULL);
    run_processes(3, gathers_other_sizes, NULL);
    run_processes(3, loses_rank_1, NULL);
    run_processes(3, loses_rank_0, NULL);
    run_processes_for(3, 0.4, waits_in_vain);
    run_threads(2, fails_in_its_own_way, NULL);

    ferry_thread_group *group = NULL;
    assert_int_equal(ferry_thread_group_create(3, &group), FERRY_OK);
    fy_thread_group_timeout(group, 0.2);
    run_threads_in(group, 3, waits_in_vain, NULL);
    ferry_thread_group_destroy(group);
}

/* Two threads that take one rank's seat. */
static void *gathers_as_rank_0(void *user) {
    int mine = 0, all[3];
    CHECK(fy_bootstrap_allgather(user, &mine, all, sizeof mine) == FERRY_E_INVALID);
    CHECK_TEXT("two threads act as rank 0");
    return NULL;
}

static void test_thread_group(void **state) {
    (void)state;
    ferry_thread_group *group = NULL;
    ferry_bootstrap bootstrap;
    assert_int_equal(ferry_thread_group_create(0, &group), FERRY_E_INVALID);
    assert_int_equal(ferry_thread_group_create(FY_MAX_RANKS + 1, &group), FERRY_E_INVALID);
    assert_int_equal(ferry_thread_group_create(3, NULL), FERRY_E_INVALID);
    assert_null(group);
    assert_int_equal(ferry_thread_group_create(3, &group), FERRY_OK);
    assert_int_equal(ferry_thread_group_bootstrap(group, 3, &bootstrap), FERRY_E_INVALID);
    assert_int_equal(ferry_thread_group_bootstrap(group, -1, &bootstrap), FERRY_E_INVALID);
    assert_int_equal(ferry_thread_group_bootstrap(NULL, 0, &bootstrap), FERRY_E_INVALID);
    assert_int_equal(ferry_thread_group_bootstrap(group, 0, &bootstrap), FERRY_OK);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, gathers_as_rank_0, &bootstrap), 0);
    gathers_as_rank_0(&bootstrap);
    pthread_join(other, NULL);
    assert_int_equal(atomic_exchange(&failed_checks, 0), 0);
    ferry_thread_group_destroy(group);
    ferry_thread_group_destroy(NULL);
}

/* ---- The same job again ---- */

static void lives(ferry_bootstrap *bootstrap, void *user) {
    _Atomic int *ready = user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    CHECK_OK(ferry_comm_create(&config, &comm));
    if (!comm) return;
    CHECK_OK(ferry_barrier(comm));
    if (ready) {
        atomic_fetch_add(ready, 1);
        while (ferry_comm_error(comm) == FERRY_OK) fy_sleep_ns(1000000);
    }
    ferry_comm_destroy(comm);
}

static void start_and_finish(const char *job, int nranks) {
    pid_t ranks[8];
    int64_t start = fy_now_ns();
    for (int r = 0; r < nranks; r++) ranks[r] = start_rank(r, nranks, job, 20, lives, NULL);
    for (int r = 0; r < nranks; r++) assert_int_equal(exit_code_of(ranks[r]), 0);
    assert_true(seconds_since(start) < 5);
}

/* Some ranks of a start are killed; the others are slow to go, and may still be there when the next start is over. */
static void test_again_after_kill(void **state) {
    (void)state;
    _Atomic int *ready = shared_memory(sizeof *ready);
    const char *job = new_job();
    const int survives[][3] = {{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 1, 0}};
    for (size_t i = 0; i < sizeof survives / sizeof *survives; i++) {
        pid_t ranks[3];
        atomic_store(ready, 0);
        for (int r = 0; r < 3; r++) ranks[r] = start_rank(r, 3, job, 20, lives, ready);
        while (atomic_load(ready) < 3) fy_sleep_ns(1000000);
        for (int r = 0; r < 3; r++) kill(ranks[r], survives[i][r] ? SIGSTOP : SIGKILL);
        start_and_finish(job, 3);
        for (int r = 0; r < 3; r++) kill(ranks[r], SIGCONT);
        for (int r = 0; r < 3; r++) assert_int_equal(exit_code_of(ranks[r]), survives[i][r] ? 0 : 128 + SIGKILL);
    }
    munmap(ready, sizeof *ready);
}

/* Rank 0 of the last start still holds the name while the new start begins, then goes. */
static void test_again_while_name_is_held(void **state) {
    (void)state;
    const char *job = new_job();
    pid_t old = start_rank(0, 2, job, 30, lives, NULL), ranks[2];
    fy_sleep_ns(100000000);
    kill(old, SIGSTOP);
    for (int r = 0; r < 2; r++) ranks[r] = start_rank(r, 2, job, 20, lives, NULL);
    fy_sleep_ns(300000000);
    kill(old, SIGKILL);
    for (int r = 0; r < 2; r++) assert_int_equal(exit_code_of(ranks[r]), 0);
    assert_int_equal(exit_code_of(old), 128 + SIGKILL);
}

/* A rank that joined and died before all were there does not take its successor's place, whoever comes last. */
static void test_again_before_all_came(void **state) {
    (void)state;
    for (int last = 1; last <= 2; last++) {
        const char *job = new_job();
        pid_t ranks[3], early = start_rank(1, 3, job, 20, lives, NULL);
        ranks[0] = start_rank(0, 3, job, 20, lives, NULL);
        fy_sleep_ns(200000000);
        kill(early, SIGKILL);
        assert_int_equal(exit_code_of(early), 128 + SIGKILL);
        ranks[3 - last] = start_rank(3 - last, 3, job, 20, lives, NULL);
        fy_sleep_ns(last == 1 ? 300000000 : 0);
        ranks[last] = start_rank(last, 3, job, 20, lives, NULL);
        for (int r = 0; r < 3; r++) assert_int_equal(exit_code_of(ranks[r]), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_world_sizes_differ),
        cmocka_unit_test(test_rank_twice),
        cmocka_unit_test(test_rank_missing),
        cmocka_unit_test(test_allgather_fails),
        cmocka_unit_test(test_thread_group),
        cmocka_unit_test(test_again_after_kill),
        cmocka_unit_test(test_again_while_name_is_held),
        cmocka_unit_test(test_again_before_all_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
