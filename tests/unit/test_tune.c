/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tune files: lines and their forgeries, which file counts, what a layer takes from one and what goes before it, and
 * the search's decisions. No choice changes a bit.
 */
#include "cli/message.h"
#include "cli/tune.h"
#include "layer_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t state = 4711;
static int64_t random_below(int64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

static char folder[] = "/tmp/ferry_tune_XXXXXX", path[64];

static int make_folder(void **unused) {
    (void)unused;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a/b/tune", folder);
    return 0;
}

static int remove_folder(void **unused) {
    char command[96];
    (void)unused;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* ---- Lines ---- */

static fy_tune_entry some_entry(void) {
    ferry_layer_config c;
    ferry_layer_config_init(&c);
    c.hidden = 1 + random_below(10000);
    c.intermediate = 1 + random_below(10000);
    c.experts = 1 + random_below(500);
    c.slots = 1 + random_below(10);
    c.max_tokens = random_below(100000);
    fy_tune_entry e = fy_tune_key(&c, random_below(2) ? FERRY_CUDA : FERRY_CPU, "A maker's (R) chip @ 2.0", 132,
                                  1 + (int)random_below(256));
    e.backward = random_below(2);
    e.minibatch_rows = 64 * random_below(100);
    e.pull_warps = random_below(4);
    e.fan_out = random_below(3);
    e.comm_sms = random_below(132);
    e.comm_workers = random_below(8);
    e.rule_us = random_below(1 << 30);
    e.tuned_us = random_below(1 << 30);
    return e;
}

static void test_lines(void **unused) {
    char line[FY_TUNE_LINE];
    (void)unused;
    for (int trial = 0; trial < 500; trial++) {
        fy_tune_entry e = some_entry(), back;
        memset(&back, 0xee, sizeof back);
        fy_tune_print(&e, line);
        assert_int_equal(line[strlen(line) - 1], '\n');
        assert_int_equal(fy_tune_parse(line, &back), 1);
        assert_string_equal(back.machine, "A-maker-s--R--chip---2.0");
        back.machine[0] = e.machine[0];
        assert_memory_equal(back.machine, e.machine, strlen(e.machine) + 1);
        assert_memory_equal(&back.backend, &e.backend, sizeof e - offsetof(fy_tune_entry, backend));
        line[strlen(line) - 1] = '\0';
        assert_int_equal(fy_tune_parse(line, &back), 1); /* the newline may be missing */
    }
    char name[96];
    fy_tune_machine("", name);
    assert_string_equal(name, "unknown");
    char longest[400];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    fy_tune_machine(longest, name);
    assert_int_equal(strlen(name), 95);
    fy_tune_entry e = some_entry();
    int64_t *values = &e.backend;
    memcpy(e.machine, name, sizeof name);
    for (size_t i = 0; i < (sizeof e - offsetof(fy_tune_entry, backend)) / sizeof *values; i++)
        values[i] = INT64_C(1) << 40; /* more than any field takes: no line is longer */
    fy_tune_print(&e, line);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

/* What is taken for an entry prints as exactly what was read: no other spelling passes. */
static void check_strict(const char *text) {
    char line[FY_TUNE_LINE];
    fy_tune_entry e, poison;
    memset(&poison, 0xee, sizeof poison);
    e = poison;
    if (!fy_tune_parse(text, &e)) {
        assert_memory_equal(&e, &poison, sizeof e);
        return;
    }
    fy_tune_print(&e, line);
    /* A number may have zeros before it, and the newline may be missing. */
    if (!strchr(text, '\n')) line[strlen(line) - 1] = '\0';
    if (strstr(text, "=0") == NULL) assert_string_equal(line, text);
}

static void test_forgeries(void **unused) {
    char line[FY_TUNE_LINE], bad[2 * FY_TUNE_LINE];
    fy_tune_entry e;
    (void)unused;
    for (int trial = 0; trial < 300; trial++) {
        fy_tune_entry good = some_entry();
        fy_tune_print(&good, line);
        size_t length = strlen(line);
        for (size_t cut = 0; cut + 1 < length; cut++) { /* a digit less is another number, anything else no entry */
            snprintf(bad, sizeof bad, "%.*s", (int)cut, line);
            int last_field = strstr(bad, "tuned_us=") && bad[cut - 1] != '=';
            assert_int_equal(fy_tune_parse(bad, &e), last_field);
        }
        for (int i = 0; i < 100; i++) {
            strcpy(bad, line);
            for (int64_t changes = 1 + random_below(3); changes > 0; changes--)
                bad[random_below((int64_t)length)] = (char)(1 + random_below(255));
            check_strict(bad);
        }
    }
    static const char *const others[] = {"",
                                         "\n",
                                         "ferry-tune-1",
                                         "ferry-tune-2 machine=a",
                                         "ferry-tune-1 machine= backend=0",
                                         "# remark",
                                         "ferry-tune-1 machine=a backend=99999999999999999999",
                                         "ferry-tune-1  machine=a",
                                         "\xff\xfe",
                                         "backend=0"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_int_equal(fy_tune_parse(others[i], &e), 0);
    fy_tune_entry good = some_entry();
    fy_tune_print(&good, line);
    line[strlen(line) - 1] = '\0';
    static const char *const tails[] = {" ", " more=1", "\n\n", "\r\n", "x", "9999999999999999999999"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(bad, sizeof bad, "%s%s", line, tails[i]);
        assert_int_equal(fy_tune_parse(bad, &e), 0);
    }
}

/* ---- Files ---- */

static void test_paths(void **unused) {
    char to[256], small[4];
    (void)unused;
    setenv("FERRY_TUNE_FILE", "/own", 1);
    setenv("XDG_CACHE_HOME", "/cache", 1);
    setenv("HOME", "/home/me", 1);
    assert_int_equal(fy_tune_path("given", to, sizeof to), 1);
    assert_string_equal(to, "given");
    assert_int_equal(fy_tune_path("", to, sizeof to), 0);
    assert_int_equal(fy_tune_path(NULL, to, sizeof to), 1);
    assert_string_equal(to, "/own");
    setenv("FERRY_TUNE_FILE", "", 1);
    assert_int_equal(fy_tune_path(NULL, to, sizeof to), 0);
    unsetenv("FERRY_TUNE_FILE");
    assert_int_equal(fy_tune_path(NULL, to, sizeof to), 1);
    assert_string_equal(to, "/cache/ferry/tune");
    assert_int_equal(fy_tune_path(NULL, small, sizeof small), 0);
    setenv("XDG_CACHE_HOME", "", 1);
    assert_int_equal(fy_tune_path(NULL, to, sizeof to), 1);
    assert_string_equal(to, "/home/me/.cache/ferry/tune");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(fy_tune_path(NULL, to, sizeof to), 0);
    setenv("FERRY_TUNE_FILE", "", 1); /* for the other tests */
}

static void write_file(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void read_file(char *to, size_t room) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(to, 1, room - 1, file);
    to[n] = '\0';
    fclose(file);
}

static void test_file(void **unused) {
    char text[8192], line[FY_TUNE_LINE], other_line[FY_TUNE_LINE];
    fy_tune_entry e = some_entry(), other = some_entry(), found = e;
    (void)unused;
    e.backward = 0;
    e.minibatch_rows = 640;
    assert_int_equal(fy_tune_find(path, &found), 0);
    assert_int_equal(tune_file_put(path, &e), CLI_FAILED);  /* no folder */
    assert_int_equal(tune_file_check(path, 1), CLI_FAILED); /* a path that somebody named */
    assert_int_equal(tune_file_list(path, 1, 0), CLI_FAILED);
    assert_int_equal(tune_file_list(path, 0, 0), CLI_OK);
    assert_int_equal(tune_file_check(path, 0), CLI_OK); /* makes its folders */
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    found = e;
    found.minibatch_rows = 0;
    assert_int_equal(fy_tune_find(path, &found), 1);
    assert_int_equal(found.minibatch_rows, 640);

    /* Other lines stay as they are, in their order; the entry's own line is replaced. */
    char *large = malloc(100001);
    memset(large, 'y', 100000);
    large[100000] = '\0';
    fy_tune_print(&other, other_line);
    FILE *file = fopen(path, "a");
    fprintf(file, "# mine\nferry-tune-9 x\n%s\n%slast without newline", large, other_line);
    fclose(file);
    e.minibatch_rows = 128;
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    assert_int_equal(fy_tune_find(path, &found), 1);
    assert_int_equal(found.minibatch_rows, 128);
    found = other;
    assert_int_equal(fy_tune_find(path, &found), 1);
    char *all = malloc(200000), *wanted = malloc(200000);
    read_file(all, 200000);
    fy_tune_print(&e, line);
    snprintf(wanted, 200000, "# mine\nferry-tune-9 x\n%s\n%slast without newline\n%s", large, other_line, line);
    assert_string_equal(all, wanted);
    free(large);
    free(all);
    free(wanted);

    /* Of forward and backward before forward alone; the last of equals. */
    e.backward = 1;
    e.minibatch_rows = 192;
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    found = e;
    found.backward = 0;
    assert_int_equal(fy_tune_find_for_layer(path, &found), 1);
    assert_int_equal(found.minibatch_rows, 192);
    fy_tune_print(&e, line);
    e.minibatch_rows = 256;
    fy_tune_print(&e, other_line);
    snprintf(text, sizeof text, "%s%s", line, other_line);
    write_file(text);
    assert_int_equal(fy_tune_find(path, &found), 1);
    assert_int_equal(found.minibatch_rows, 256);

    /* As much as a layer reads, and a byte more. */
    assert_int_equal(truncate(path, FY_TUNE_BYTES), 0);
    assert_int_equal(fy_tune_find(path, &found), 1);
    assert_int_equal(truncate(path, FY_TUNE_BYTES + 1), 0);
    assert_int_equal(fy_tune_find(path, &found), 0);
    assert_int_equal(tune_file_put(path, &e), CLI_FAILED);
    assert_int_equal(unlink(path), 0);

    /* Not plain files. */
    assert_int_equal(fy_tune_find(folder, &found), 0);
    assert_int_equal(tune_file_check(folder, 0), CLI_FAILED);
    assert_int_equal(tune_file_list("/dev/zero", 1, 0), CLI_FAILED);
    snprintf(text, sizeof text, "%s/pipe", folder);
    assert_int_equal(mkfifo(text, 0600), 0);
    assert_int_equal(fy_tune_find(text, &found), 0);
    assert_int_equal(tune_file_put(text, &e), CLI_FAILED);
    assert_int_equal(tune_file_list(text, 0, 0), CLI_FAILED);
    assert_int_equal(tune_file_check(path, 1), CLI_OK);
}

/* Writers that meet lose nothing, and a reader never finds half a file. */
static void *put_many(void *user) {
    fy_tune_entry e = *(const fy_tune_entry *)user, found;
    for (e.hidden = 1; e.hidden <= 20; e.hidden++) {
        if (tune_file_put(path, &e) != CLI_OK) return user;
        found = e;
        if (!fy_tune_find(path, &found)) return user;
    }
    return NULL;
}

static void test_writers(void **unused) {
    enum { WRITERS = 4 };
    pthread_t thread[WRITERS];
    fy_tune_entry e[WRITERS];
    void *bad;
    (void)unused;
    for (int w = 0; w < WRITERS; w++) {
        e[w] = some_entry();
        e[w].ranks = 1 + w;
        assert_int_equal(pthread_create(&thread[w], NULL, put_many, &e[w]), 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        assert_int_equal(pthread_join(thread[w], &bad), 0);
        assert_null(bad);
    }
    for (int w = 0; w < WRITERS; w++)
        for (e[w].hidden = 1; e[w].hidden <= 20; e[w].hidden++) assert_int_equal(fy_tune_find(path, &e[w]), 1);
}

/* ---- Layers ---- */

enum { RANKS = 2, TOKENS = 150, SLOTS = 2, EXPERTS = 4, HIDDEN = 64, INNER = 32, LOCAL = 2 };

typedef struct job {
    int comm_workers, compute_workers;
    int64_t minibatch;
    const char *tune_file;
    ferry_plan plan;
    uint16_t out[TOKENS * HIDDEN];
} job;

static ferry_status forward(void *argument, int rank, ferry_layer *layer, ferry_context *context) {
    job *j = argument;
    static uint16_t weights[LOCAL * HIDDEN * INNER], x[TOKENS * HIDDEN];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int filled; /* once: other ranks may be reading */
    int32_t ids[TOKENS * SLOTS], tokens = TOKENS;
    float router[TOKENS * SLOTS];
    pthread_mutex_lock(&lock);
    for (int i = 0; !filled && i < LOCAL * HIDDEN * INNER; i++)
        weights[i] = (uint16_t)(0x3d80 + i * 37 % 128 + (i % 3 << 15));
    for (int i = 0; !filled && i < TOKENS * HIDDEN; i++) x[i] = (uint16_t)(0x3f00 + i * 11 % 256 + (i % 5 << 15));
    filled = 1;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < TOKENS * SLOTS; i++) {
        ids[i] = (i * 7 + rank) % EXPERTS;
        router[i] = 0.5f;
    }
    ferry_forward_args f;
    ferry_forward_args_init(&f);
    f.num_tokens = &tokens;
    f.x = x;
    f.ids = ids;
    f.weights = router;
    f.params.gate = f.params.up = dense_matrices(weights, INNER, HIDDEN, FERRY_BF16);
    f.params.down = dense_matrices(weights, HIDDEN, INNER, FERRY_BF16);
    f.out = j->out;
    (void)context; /* of no use to a forward alone */
    j->plan = (ferry_plan){.size = sizeof j->plan};
    ferry_status status = ferry_layer_get_plan(layer, &j->plan);
    return status ? status : ferry_forward(layer, &f);
}

static job jobs[RANKS], plain;
static int has_plain;

/* What is in `jobs`, on all ranks; the result's bits are those of the first run. */
static void run_jobs(void) {
    layer_rank ranks[RANKS];
    for (int r = 0; r < RANKS; r++) {
        job *j = &jobs[r];
        memset(j->out, 0xee, sizeof j->out);
        layer_rank_init(&ranks[r], forward, j);
        ranks[r].comm.comm_workers = j->comm_workers;
        ranks[r].comm.compute_workers = j->compute_workers;
        layer_rank_extents(&ranks[r], HIDDEN, INNER, EXPERTS, SLOTS, TOKENS);
        ranks[r].layer.minibatch_rows = j->minibatch;
        ranks[r].layer.tune_file = j->tune_file;
    }
    run_layer_ranks(ranks, RANKS);
    if (has_plain) assert_memory_equal(jobs[0].out, plain.out, sizeof plain.out);
}

/* Both ranks are told alike and have one plan. */
static ferry_plan run(const char *tune_file, int comm_workers, int compute_workers, int64_t minibatch) {
    for (int r = 0; r < RANKS; r++)
        jobs[r] = (job){.comm_workers = comm_workers,
                        .compute_workers = compute_workers,
                        .minibatch = minibatch,
                        .tune_file = r == 0 ? tune_file : "/nowhere/at/all"};
    run_jobs();
    assert_int_equal(jobs[0].plan.minibatch_rows, jobs[1].plan.minibatch_rows);
    assert_int_equal(jobs[0].plan.comm_workers, jobs[1].plan.comm_workers);
    assert_int_equal(jobs[0].plan.tuned, jobs[1].plan.tuned);
    return jobs[0].plan;
}

static void test_layer(void **unused) {
    ferry_layer_config c;
    char machine[256], line[FY_TUNE_LINE];
    (void)unused;
    ferry_plan rule = run("", 1, 3, 0);
    assert_int_equal(rule.tuned, 0);
    plain = jobs[0];
    has_plain = 1;
    ferry_layer_config_init(&c);
    c.hidden = HIDDEN;
    c.intermediate = INNER;
    c.experts = EXPERTS;
    c.slots = SLOTS;
    c.max_tokens = TOKENS;
    fy_processor_name(machine, sizeof machine);
    fy_tune_entry e = fy_tune_key(&c, FERRY_CPU, machine, 4, RANKS);
    e.minibatch_rows = 64;
    e.comm_workers = 2;
    e.comm_sms = 3; /* of GPUs: nothing here */
    assert_true(rule.minibatch_rows != 64);
    assert_int_equal(tune_file_put(path, &e), CLI_OK);

    ferry_plan plan = run(path, 1, 3, 0); /* rank 0's file, for both; workers were given, so they stay */
    assert_true(plan.minibatch_rows == 64 && plan.comm_workers == 1 && plan.comm_sms == 0);
    assert_int_equal(plan.tuned, FERRY_TUNED_MINIBATCH_ROWS);
    plan = run(path, 1, 3, 128); /* given before tuned */
    assert_true(plan.minibatch_rows == 128 && plan.tuned == 0);
    plan = run(path, 1, 2, 0); /* another number of workers */
    assert_true(plan.tuned == 0);
    setenv("FERRY_TUNE_FILE", path, 1);
    plan = run(NULL, 1, 3, 0);
    assert_int_equal(plan.tuned, FERRY_TUNED_MINIBATCH_ROWS);
    setenv("FERRY_TUNE_FILE", "", 1);

    /* Workers by rule: as many as there are, split as the file says. */
    plan = run("", 0, 0, 0);
    long processors = sysconf(_SC_NPROCESSORS_ONLN) / RANKS;
    int workers = 1 + (int)(processors < 1 ? 1 : processors > 64 ? 64 : processors);
    e.workers = workers;
    e.comm_workers = workers - 1;
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    plan = run(path, 0, 0, 0);
    assert_int_equal(plan.comm_workers, workers - 1);
    assert_int_equal(plan.tuned, FERRY_TUNED_MINIBATCH_ROWS | FERRY_TUNED_COMM_WORKERS);
    e.comm_workers = workers; /* nobody would be left to multiply */
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    plan = run(path, 0, 0, 0);
    assert_true(plan.comm_workers == 1 && plan.tuned == FERRY_TUNED_MINIBATCH_ROWS);

    /* Rank 0 was given more workers than the other rank has by rule: that one still multiplies. */
    e.workers = 60;
    e.comm_workers = 40;
    if (workers >= 40) e.comm_workers = workers;
    assert_int_equal(tune_file_put(path, &e), CLI_OK);
    jobs[0] = (job){.comm_workers = 1, .compute_workers = 59, .tune_file = path};
    jobs[1] = (job){.tune_file = ""};
    run_jobs();
    assert_int_equal(jobs[0].plan.tuned, FERRY_TUNED_MINIBATCH_ROWS);
    assert_int_equal(jobs[1].plan.tuned, FERRY_TUNED_MINIBATCH_ROWS);
    assert_int_equal(jobs[1].plan.comm_workers, 1);

    /* Nothing that a file says can break a layer. */
    e.workers = workers;
    fy_tune_print(&e, line);
    for (int trial = 0; trial < 40; trial++) {
        char bad[FY_TUNE_LINE + 8];
        strcpy(bad, line);
        for (int64_t changes = 1 + random_below(6); changes > 0; changes--)
            bad[random_below((int64_t)strlen(line))] = (char)(1 + random_below(255));
        write_file(bad);
        run(path, 0, 0, 0);
    }
}

static void test_apply(void **unused) {
    ferry_layer_config c;
    (void)unused;
    ferry_layer_config_init(&c);
    fy_tune_entry e = {.backend = FERRY_CUDA, .workers = 132, .minibatch_rows = 512, .pull_warps = 2, .fan_out = 2};
    e.comm_sms = 8;
    ferry_layer_config all = c, given = c, few = c;
    int comm_workers = 0;
    assert_int_equal(fy_tune_apply(&e, &all, &comm_workers), 15);
    assert_true(all.minibatch_rows == 512 && all.pull_warps == 2 && all.fan_out == 2 && all.comm_sms == 8);
    given.minibatch_rows = 64;
    given.pull_warps = 1;
    given.fan_out = 1;
    given.comm_sms = 2;
    ferry_layer_config before = given;
    assert_int_equal(fy_tune_apply(&e, &given, &comm_workers), 0);
    assert_memory_equal(&before, &given, sizeof given);
    e.comm_sms = 132;
    assert_int_equal(fy_tune_apply(&e, &few, &comm_workers), 7);
    assert_int_equal(few.comm_sms, 0);
}

/* ---- The search ---- */

static void test_decisions(void **unused) {
    (void)unused;
    const double base[5] = {10.0, 10.1, 9.9, 10.2, 10.0}, faster[5] = {9.0, 9.1, 9.0, 8.9, 9.2};
    const double noisy[5] = {9.6, 8.0, 12.0, 9.8, 11.0}, steady[5] = {9.99, 9.98, 9.99, 9.98, 9.99};
    const double same[5] = {10, 10, 10, 10, 10};
    assert_true(tune_median(base, 5) == 10.0);
    assert_int_equal(tune_beats(base, faster, 5), 1);
    assert_int_equal(tune_beats(faster, base, 5), 0);
    assert_int_equal(tune_beats(base, noisy, 5), 0);
    assert_int_equal(tune_beats(base, base, 5), 0);
    assert_int_equal(tune_beats(same, steady, 5), 0); /* steadily faster by nothing */
}

static void test_candidates(void **unused) {
    fy_tune_entry c[TUNE_CANDIDATES], base = {.backend = FERRY_CUDA, .workers = 132, .slots = 8};
    ferry_plan plan = {.minibatch_rows = 256, .ring_rows = 600, .pull_warps = 2, .fan_out = 1};
    (void)unused;
    assert_int_equal(tune_candidates(&base, &plan, TUNE_MINIBATCH, 0, c), 3);
    assert_true(c[0].minibatch_rows == 0 && c[1].minibatch_rows == 128 && c[2].minibatch_rows == 512);
    base.minibatch_rows = 512;
    assert_int_equal(tune_candidates(&base, &plan, TUNE_FAN_OUT, 1, c), 2);
    assert_true(c[0].fan_out == 0 && c[1].fan_out == 2 && c[1].minibatch_rows == 512);
    assert_int_equal(tune_candidates(&base, &plan, TUNE_PULL_WARPS, 0, c), 2);
    assert_int_equal(tune_candidates(&base, &plan, TUNE_PULL_WARPS, 1, c), 1);
    assert_int_equal(tune_candidates(&base, &plan, TUNE_COMM_SMS, 0, c), 4);
    assert_int_equal(tune_candidates(&base, &plan, TUNE_COMM_WORKERS, 0, c), 1);
    base.backend = FERRY_CPU;
    base.workers = 4;
    plan.comm_workers = 1;
    assert_int_equal(tune_candidates(&base, &plan, TUNE_COMM_WORKERS, 0, c), 3);
    assert_true(c[1].comm_workers == 2 && c[2].comm_workers == 3);
    assert_int_equal(tune_candidates(&base, &plan, TUNE_FAN_OUT, 0, c), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines), cmocka_unit_test(test_forgeries), cmocka_unit_test(test_paths),
        cmocka_unit_test(test_file),  cmocka_unit_test(test_writers),   cmocka_unit_test(test_layer),
        cmocka_unit_test(test_apply), cmocka_unit_test(test_decisions), cmocka_unit_test(test_candidates)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
