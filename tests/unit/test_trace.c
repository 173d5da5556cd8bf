/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry trace`: what the observer records, and what the timelines of real runs say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "cli/message.h"
#include "cli/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Recording ---- */

static void tell(const ferry_observer *observer, int worker, ferry_phase phase, int begin, int wait, int step) {
    static int64_t now_ns;
    ferry_event event = {.phase = phase,
                         .begin = begin,
                         .wait = wait,
                         .rank = 1,
                         .worker = worker,
                         .macrobatch = step / 2,
                         .step = step,
                         .what = "unit",
                         .time_ns = ++now_ns};
    assert_int_equal(observer->event(observer->user, &event), 0);
}

static void test_spans(void **state) {
    (void)state;
    trace_log log;
    trace_span spans[8];
    assert_int_equal(trace_log_create(&log, 2, 1, 2, 8), 0);
    ferry_observer observer = trace_observer(&log);
    tell(&observer, 2, FERRY_PHASE_PULL, 1, 0, 3);
    tell(&observer, 2, FERRY_PHASE_PULL, 1, 1, 3);
    tell(&observer, 2, FERRY_PHASE_PULL, 0, 1, 3);
    tell(&observer, 2, FERRY_PHASE_PULL, 0, 0, 3);
    tell(&observer, 2, FERRY_PHASE_PUSH, 1, 0, 5);

    const trace_buffer *buffer = trace_buffer_of(&log, 1, 2);
    assert_int_equal(buffer->count, 5);
    assert_int_equal(trace_buffer_of(&log, 1, 1)->count, 0);
    int64_t begin_ns = -1, end_ns = -1;
    assert_int_equal(trace_log_extent(&log, &begin_ns, &end_ns), 0);
    assert_true(begin_ns > 0 && end_ns >= begin_ns);
    assert_int_equal(trace_spans(buffer, end_ns + 7, spans), 3);
    assert_int_equal(spans[0].depth, 0);
    assert_int_equal(spans[1].depth, 1);
    assert_int_equal(spans[2].depth, 0);
    assert_true(spans[1].event->wait && !spans[0].event->wait);
    assert_true(spans[0].begin_ns <= spans[1].begin_ns && spans[1].end_ns <= spans[0].end_ns);
    assert_int_equal(spans[0].event->step, 3);
    assert_int_equal(spans[0].event->macrobatch, 1);
    assert_int_equal(spans[2].end_ns, end_ns + 7); /* never seen to end */
    trace_log_destroy(&log);
}

static void test_lost_events_are_counted(void **state) {
    (void)state;
    trace_log log;
    assert_int_equal(trace_log_create(&log, 2, 1, 1, 3), 0);
    ferry_observer observer = trace_observer(&log);
    for (int i = 0; i < 5; i++) tell(&observer, -1, FERRY_PHASE_SCHEDULE, 1, 0, i);
    tell(&observer, 0, FERRY_PHASE_PULL, 1, 0, 0);
    assert_int_equal(trace_buffer_of(&log, 1, -1)->count, 3);
    assert_int_equal(trace_buffer_of(&log, 1, -1)->events[2].step, 2);
    assert_int_equal(trace_log_lost(&log), 2);
    trace_log_reset(&log, 0);
    assert_int_equal(trace_log_lost(&log), 2);
    trace_log_reset(&log, 1);
    assert_int_equal(trace_log_lost(&log), 0);
    int64_t begin_ns, end_ns;
    assert_int_equal(trace_log_extent(&log, &begin_ns, &end_ns), -1);
    trace_log_destroy(&log);
}

/* ---- Timelines of real runs ---- */

enum { RANKS = 2, THREADS = 4, MAX_STEPS = 256, MAX_SPANS = 65536 };

typedef struct span {
    double begin, end;
    const char *phase;
    int rank, macrobatch, step, backward, wait;
} span;

typedef struct timeline {
    json_t *root;
    span spans[MAX_SPANS];
    int count;
} timeline;

static char json_path[64], svg_path[64];

static int make_paths(void **state) {
    (void)state;
    snprintf(json_path, sizeof json_path, "/tmp/ferry-test-trace-%ld.json", (long)getpid());
    snprintf(svg_path, sizeof svg_path, "/tmp/ferry-test-trace-%ld.svg", (long)getpid());
    cli_message_command("trace");
    return 0;
}

static int remove_paths(void **state) {
    (void)state;
    unlink(json_path);
    unlink(svg_path);
    return 0;
}

/* A wide hidden size and a narrow intermediate one: transfers take long beside the products. */
static int trace(const char *mode, const char *events) {
    char *arguments[] = {"trace",
                         "--shape",
                         "2048,8,8,4,768",
                         "--ranks",
                         "2",
                         "--ring",
                         "256",
                         "--minibatch",
                         "64",
                         "--comm-workers",
                         "2",
                         "--compute-workers",
                         "1",
                         "--backward",
                         (char *)mode,
                         "--events",
                         (char *)events,
                         "--out",
                         json_path,
                         "--svg",
                         svg_path,
                         NULL};
    return ferry_cmd_trace(sizeof arguments / sizeof *arguments - 1, arguments);
}

static int integer(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return (int)json_integer_value(json_object_get(object, key));
}

/* Pairs begins with ends; they must nest and never go back in time, worker by worker. */
static void read_timeline(timeline *t) {
    struct {
        int open[4], depth;
        double last;
    } threads[RANKS][THREADS + 2] = {{{{0}, 0, 0}}};
    json_error_t error;
    t->root = json_load_file(json_path, JSON_REJECT_DUPLICATES, &error);
    if (!t->root) fail_msg("%s: %s at line %d", json_path, error.text, error.line);
    const json_t *events = json_object_get(t->root, "traceEvents");
    assert_true(json_is_array(events));
    t->count = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *arguments = json_object_get(event, "args");
        const char *kind = json_string_value(json_object_get(event, "ph"));
        int rank = integer(event, "pid");
        if (strcmp(kind, "M") == 0) continue;
        int thread = integer(event, "tid");
        assert_true(rank >= 0 && rank < RANKS && thread >= 1 && thread <= THREADS);
        double ts = json_real_value(json_object_get(event, "ts"));
        assert_true(ts >= threads[rank][thread].last);
        threads[rank][thread].last = ts;
        int *depth = &threads[rank][thread].depth;
        if (strcmp(kind, "B") == 0) {
            assert_true(*depth < 2 && t->count < MAX_SPANS);
            assert_int_equal(integer(arguments, "worker"), thread - 2);
            span *s = &t->spans[t->count];
            *s = (span){.begin = ts,
                        .phase = json_string_value(json_object_get(arguments, "phase")),
                        .rank = rank,
                        .macrobatch = integer(arguments, "macrobatch"),
                        .step = integer(arguments, "step"),
                        .backward = json_is_true(json_object_get(arguments, "backward")),
                        .wait = !strcmp(json_string_value(json_object_get(event, "cat")), "wait")};
            if (*depth == 1) assert_true(s->wait); /* only waits are inside something */
            threads[rank][thread].open[(*depth)++] = t->count++;
        } else {
            assert_string_equal(kind, "E");
            assert_true(*depth > 0);
            t->spans[threads[rank][thread].open[--*depth]].end = ts;
        }
    }
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < THREADS + 2; i++) assert_int_equal(threads[r][i].depth, 0);
}

/* Every step of every call of every rank is pulled once, computed in at least one unit and pushed once. */
static void check_steps(const timeline *t) {
    for (int rank = 0; rank < RANKS; rank++) {
        for (int backward = 0; backward < 2; backward++) {
            int pulls[MAX_STEPS] = {0}, units[MAX_STEPS] = {0}, pushes[MAX_STEPS] = {0}, steps = 0, schedules = 0;
            for (int i = 0; i < t->count; i++) {
                const span *s = &t->spans[i];
                if (s->rank != rank || s->backward != backward || s->wait) continue;
                schedules += !strcmp(s->phase, "schedule");
                if (s->step < 0) continue;
                assert_true(s->step < MAX_STEPS && s->macrobatch >= 0);
                pulls[s->step] += !strcmp(s->phase, "pull");
                units[s->step] += !strcmp(s->phase, "compute");
                pushes[s->step] += !strcmp(s->phase, "push");
                if (s->step >= steps) steps = s->step + 1;
            }
            assert_int_equal(schedules, 1);
            assert_true(steps >= 8);
            for (int i = 0; i < steps; i++) {
                assert_int_equal(pulls[i], 1);
                assert_true(units[i] >= 1);
                assert_int_equal(pushes[i], 1);
            }
        }
    }
}

/* Forward walks macrobatches downwards, backward upwards. */
static int push_overlaps_next_pull(const timeline *t) {
    for (int a = 0; a < t->count; a++) {
        const span *push = &t->spans[a];
        if (push->wait || strcmp(push->phase, "push") != 0) continue;
        for (int b = 0; b < t->count; b++) {
            const span *pull = &t->spans[b];
            if (pull->wait || strcmp(pull->phase, "pull") != 0 || pull->rank != push->rank ||
                pull->backward != push->backward)
                continue;
            int next = push->macrobatch + (push->backward ? 1 : -1);
            if (pull->macrobatch == next && pull->begin < push->end && push->begin < pull->end) return 1;
        }
    }
    return 0;
}

/* Whether two transfers meet is up to the system's scheduler, so a busy machine gets several chances. */
static void test_timeline(void **state) {
    timeline *t = malloc(sizeof *t);
    int overlaps = 0;
    assert_non_null(t);
    for (int i = 0; i < 30 && !overlaps; i++) {
        assert_int_equal(trace(*state, "65536"), CLI_OK);
        read_timeline(t);
        check_steps(t);
        overlaps = push_overlaps_next_pull(t);
        const json_t *other = json_object_get(t->root, "otherData");
        assert_int_equal(integer(other, "lost_events"), 0);
        json_decref(t->root);
    }
    assert_true(overlaps);
    free(t);
}

static void test_lost_events_are_said(void **state) {
    (void)state;
    json_error_t error;
    assert_int_equal(trace("--threads", "5"), CLI_OK);
    json_t *root = json_load_file(json_path, 0, &error);
    assert_non_null(root);
    assert_true(integer(json_object_get(root, "otherData"), "lost_events") > 0);
    json_decref(root);
}

/* ---- The picture ---- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    text[size] = 0;
    fclose(file);
    return text;
}

/* Elements close in the order in which they open, and text has no bare '<'. Returns how many there are. */
static int check_elements(const char *text) {
    const char *names[16];
    size_t lengths[16];
    int depth = 0, count = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        const char *name = at + 1 + (at[1] == '/'), *end = strchr(at, '>');
        size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        assert_non_null(end);
        assert_true(length > 0);
        if (at[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_true(length == lengths[depth] && strncmp(name, names[depth], length) == 0);
            continue;
        }
        count++;
        if (end[-1] == '/') continue;
        assert_true(depth < 16);
        names[depth] = name;
        lengths[depth++] = length;
    }
    assert_int_equal(depth, 0);
    return count;
}

static void test_picture(void **state) {
    (void)state;
    static const char *const texts[] = {">rank 0<",   ">rank 1<",        ">caller<", ">comm 1<",   ">compute 0<",
                                        "macrobatch", "reverse-combine", "combine",  "dispatch",   "weighted sum",
                                        "gate+up",    "schedule",        ">ms<",     "H 2048, I 8"};
    assert_int_equal(trace("--threads", "65536"), CLI_OK);
    char *text = read_text(svg_path);
    assert_true(strncmp(text, "<svg ", 5) == 0);
    assert_true(check_elements(text) > 200);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strstr(text, texts[i])) fail_msg("the picture has no '%s'", texts[i]);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spans),
                                       cmocka_unit_test(test_lost_events_are_counted),
                                       cmocka_unit_test_prestate(test_timeline, "--threads"),
                                       cmocka_unit_test_prestate(test_timeline, "--processes"),
                                       cmocka_unit_test(test_lost_events_are_said),
                                       cmocka_unit_test(test_picture)};
    return cmocka_run_group_tests(tests, make_paths, remove_paths);
}
