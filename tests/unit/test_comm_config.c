/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations that cannot be, and ranks that do not mean the same communicator: named errors on every rank. */
#include "test_comm.h"

/* ---- One rank's configuration is wrong ---- */

typedef void spoil(ferry_comm_config *config);

/* What is wrong, and what the wrong rank says; the other ranks learn that it failed. */
typedef struct wrong {
    spoil *spoil;
    ferry_status expected;
    const char *text;
} wrong;

static void comm_workers_negative(ferry_comm_config *c) { c->comm_workers = -1; }
static void comm_workers_many(ferry_comm_config *c) { c->comm_workers = 65; }
static void compute_workers_negative(ferry_comm_config *c) { c->compute_workers = -2; }
static void compute_workers_many(ferry_comm_config *c) { c->compute_workers = 1000; }
static void enter_negative(ferry_comm_config *c) { c->enter_timeout_s = -1; }
static void enter_nan(ferry_comm_config *c) { c->enter_timeout_s = (double)(0.0f / 0.0f); }
static void progress_negative(ferry_comm_config *c) { c->progress_timeout_s = -0.5; }
static void isa_unknown(ferry_comm_config *c) { c->isa = (ferry_isa)4; }
static void *no_alloc(void *user, size_t bytes, size_t align) {
    (void)user, (void)bytes, (void)align;
    return NULL;
}
static void allocator_half(ferry_comm_config *c) { c->allocator.alloc = no_alloc; }
static void no_free(void *user, void *memory, size_t bytes) { (void)user, (void)memory, (void)bytes; }
static void allocator_empty(ferry_comm_config *c) { c->allocator = (ferry_allocator){no_alloc, no_free, NULL}; }

static void one_is_wrong(ferry_bootstrap *bootstrap, void *user) {
    const wrong *what = user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    int is_wrong = bootstrap->rank == bootstrap->nranks - 1;
    if (is_wrong) what->spoil(&config);
    CHECK(ferry_comm_create(&config, &comm) == (is_wrong ? what->expected : FERRY_E_PEER));
    CHECK(comm == NULL);
    CHECK_TEXT(is_wrong ? what->text : "rank");
    /* The bootstrap is as good as before. */
    config = config_of(bootstrap);
    CHECK_OK(ferry_comm_create(&config, &comm));
    ferry_comm_destroy(comm);
}

static void test_one_is_wrong(void **state) {
    (void)state;
    wrong all[] = {
        {comm_workers_negative, FERRY_E_INVALID, "config.comm_workers is -1"},
        {comm_workers_many, FERRY_E_INVALID, "config.comm_workers is 65"},
        {compute_workers_negative, FERRY_E_INVALID, "config.compute_workers is -2"},
        {compute_workers_many, FERRY_E_INVALID, "config.compute_workers is 1000"},
        {enter_negative, FERRY_E_INVALID, "config.enter_timeout_s is -1"},
        {enter_nan, FERRY_E_INVALID, "config.enter_timeout_s is"},
        {progress_negative, FERRY_E_INVALID, "config.progress_timeout_s is -0.5"},
        {isa_unknown, FERRY_E_INVALID, "config.isa is 4"},
        {allocator_half, FERRY_E_INVALID, "config.allocator"},
        {allocator_empty, FERRY_E_MEMORY, "a communicator"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        run_threads(1, one_is_wrong, &all[i]);
        run_threads(3, one_is_wrong, &all[i]);
        run_processes(2, one_is_wrong, &all[i]);
    }
}

/* ---- What cannot even be told to peers ---- */

static void test_unusable(void **state) {
    (void)state;
    ferry_thread_group *group = NULL;
    ferry_bootstrap bootstrap;
    assert_int_equal(ferry_thread_group_create(1, &group), FERRY_OK);
    assert_int_equal(ferry_thread_group_bootstrap(group, 0, &bootstrap), FERRY_OK);
    ferry_comm *comm = NULL;
    ferry_comm_config config = config_of(&bootstrap);
    assert_int_equal(ferry_comm_create(NULL, &comm), FERRY_E_INVALID);
    assert_int_equal(ferry_comm_create(&config, NULL), FERRY_E_INVALID);
    for (int i = 0; i < 6; i++) {
        static const char *const texts[] = {"config.size is 8",
                                            "config.bootstrap.allgather is NULL",
                                            "config.bootstrap.nranks is 0",
                                            "config.bootstrap.nranks is 1000",
                                            "config.bootstrap.rank is 1, expected 0..0",
                                            "config.bootstrap.rank is -1"};
        config = config_of(&bootstrap);
        if (i == 0) config.size = 8;
        if (i == 1) config.bootstrap.allgather = NULL;
        if (i == 2) config.bootstrap.nranks = 0;
        if (i == 3) config.bootstrap.nranks = 1000;
        if (i == 4) config.bootstrap.rank = 1;
        if (i == 5) config.bootstrap.rank = -1;
        assert_int_equal(ferry_comm_create(&config, &comm), FERRY_E_INVALID);
        assert_null(comm);
        assert_non_null(strstr(ferry_last_error(), texts[i]));
    }
    ferry_thread_group_destroy(group);

    assert_int_equal(ferry_comm_error(NULL), FERRY_E_INVALID);
    assert_int_equal(ferry_barrier(NULL), FERRY_E_INVALID);
    assert_int_equal(ferry_sym_alloc(NULL, 1, NULL), FERRY_E_INVALID);
    ferry_comm_destroy(NULL);
    ferry_sym_free(NULL, NULL);
}

/* ---- Ranks that disagree ---- */

/* An all-gather that changes what rank 1 says of itself, where the number `from` stands. */
typedef struct liar {
    ferry_bootstrap honest;
    int32_t from, to;
} liar;

static int lies(void *user, const void *mine, void *all, size_t bytes) {
    liar *self = user;
    int32_t said[16] = {0};
    if (bytes != sizeof said || self->honest.rank != 1)
        return self->honest.allgather(self->honest.user, mine, all, bytes);
    memcpy(said, mine, bytes);
    for (int i = 0; i < 16; i++)
        if (said[i] == self->from) said[i] = self->to;
    return self->honest.allgather(self->honest.user, said, all, bytes);
}

static void disagrees(ferry_bootstrap *bootstrap, void *user) {
    const char *field = user;
    ferry_comm_config config = config_of(bootstrap);
    liar self = {.honest = *bootstrap};
    char text[96];
    config.bootstrap.allgather = lies;
    config.bootstrap.user = &self;
    if (strcmp(field, "version") == 0) {
        self.from = ferry_version_number();
        self.to = 200;
        snprintf(text, sizeof text, "version: %d on rank 0, 200 on rank 1", ferry_version_number());
    } else if (strcmp(field, "backend") == 0) {
        if (bootstrap->rank == 1) config.backend = FERRY_CUDA;
        snprintf(text, sizeof text, "backend: 0 on rank 0, 1 on rank 1");
    } else if (strcmp(field, "nranks") == 0) {
        if (bootstrap->rank == 1) config.bootstrap.nranks += 2;
        snprintf(text, sizeof text, "nranks: %d on rank 0, %d on rank 1", bootstrap->nranks, bootstrap->nranks + 2);
    } else if (strcmp(field, "kind") == 0) {
        if (bootstrap->rank == 1) config.bootstrap.same_process = !bootstrap->same_process;
        snprintf(text, sizeof text, "same_process: %d on rank 0, %d on rank 1", bootstrap->same_process,
                 !bootstrap->same_process);
    } else if (strcmp(field, "order") == 0) {
        self.from = 0x4652;
        self.to = 0;
        snprintf(text, sizeof text, "in place 1");
    } else {
        config.bootstrap.same_process = 1; /* of forked processes */
        snprintf(text, sizeof text, "process");
    }
    ferry_comm *comm = NULL;
    CHECK(ferry_comm_create(&config, &comm) == FERRY_E_MISMATCH);
    CHECK_TEXT(text);
    CHECK(comm == NULL);
}

static void test_disagreement(void **state) {
    (void)state;
    const char *fields[] = {"version", "backend", "nranks", "kind", "order"};
    for (int i = 0; i < 5; i++) {
        run_threads(2, disagrees, (void *)fields[i]);
        run_threads(5, disagrees, (void *)fields[i]);
        run_processes(2, disagrees, (void *)fields[i]);
    }
    run_processes(2, disagrees, "process");
}

static void wants_cuda(ferry_bootstrap *bootstrap, void *user) {
    (void)user;
    ferry_comm_config config = config_of(bootstrap);
    ferry_comm *comm = NULL;
    config.backend = FERRY_CUDA;
    CHECK(ferry_comm_create(&config, &comm) == FERRY_E_UNSUPPORTED);
    CHECK_TEXT("FERRY_CUDA");
}

static void test_no_cuda(void **state) {
    (void)state;
    if (fy_backend_of(FERRY_CUDA)) skip();
    run_threads(2, wants_cuda, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_is_wrong),
        cmocka_unit_test(test_unusable),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_no_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
