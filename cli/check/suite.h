/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test of `ferry check` is: a function with a deadline that runs in a child process of its own, so that a crash
 * or a hang is one failed line and every test starts without threads. Suites add tests to a list; runner.c runs them.
 */
#ifndef FERRY_CLI_CHECK_SUITE_H
#define FERRY_CLI_CHECK_SUITE_H

#include "ferry/ferry.h"

#include <stddef.h>
#include <stdint.h>

/* The command line. */
typedef struct check_options {
    int64_t backend;   /* ferry_backend */
    int64_t long_tier; /* 1: the longer tier */
    int64_t seed;      /* of the property suite: case i uses seed + i */
    int64_t cases;     /* of the property suite; 0: by tier */
    int64_t suite;     /* 1 + its place in CHECK_SUITES; 0: all */
    int64_t fault;     /* check_fault_kind to restrict the fault suite to; 0: all */
    int64_t phase;     /* ferry_phase + 1 likewise; 0: all */
    int64_t overlap, list, json;
    int devices;           /* of the backend (check_backend_find) */
    char no_backward[240]; /* why the backend has no backward, or "" */
    int together;          /* this test's process runs others too: it must not fork ranks */
} check_options;

typedef enum check_state { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED } check_state;

/* Shared between the runner, the test's process and its ranks; the first failure is kept. */
typedef struct check_verdict {
    _Atomic int claimed;
    _Atomic int state;
    _Atomic int alone; /* the test gave up because it needs a process of its own */
    char text[2048];
    char note[512]; /* what a test that passed has to say */
} check_verdict;

/* What a running test knows. */
typedef struct check_case {
    check_verdict *verdict;
    const check_options *options;
    const void *argument;
} check_case;

typedef void check_body(const check_case *c);

/* Both are safe from any thread or process of the test. `check_failed` is 1 once one of them was called. */
void check_fail(const check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_skip(const check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
int check_failed(const check_case *c);
/* A line that is shown when the test passes. From the test's own thread. */
void check_note(const check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fails and leaves a function that returns `result` (empty in a void function) unless `condition` holds. */
#define CHECK_OR_RETURN(result, c, condition, ...)                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            check_fail(c, __VA_ARGS__);                                                                                \
            return result;                                                                                             \
        }                                                                                                              \
    } while (0)

typedef struct check_test {
    const char *suite;
    char name[200];
    double limit_s;
    check_body *body;
    const void *argument; /* kept alive by the suite (static tables) or by check_keep */
} check_test;

typedef struct check_list {
    check_test *tests;
    size_t count, room;
    void **kept;
    size_t kept_count;
} check_list;

/* limit_s bounds the test; sanitizers get more (check_patience). Running out of memory ends the command. */
void check_add(check_list *list, const char *suite, double limit_s, check_body *body, const void *argument,
               const char *name, ...) __attribute__((format(printf, 6, 7)));
/* A copy of an argument that lives as long as the list. */
const void *check_keep(check_list *list, const void *value, size_t bytes);
void check_list_free(check_list *list);

/* How much slower than an ordinary build this one may be: 1, or more under a sanitizer. */
double check_patience(void);
double check_now(void);
void check_sleep(double seconds);

/* The suites, in the order in which they run. */
#define CHECK_SUITES(X) X(cases) X(property) X(bits) X(life) X(memory) X(alloc) X(overlap) X(fault)
#define CHECK_SUITE_DECLARE(name) void check_suite_##name(check_list *list, const check_options *options);
CHECK_SUITES(CHECK_SUITE_DECLARE)
#undef CHECK_SUITE_DECLARE

typedef enum check_fault_kind { CHECK_KILL = 1, CHECK_STOP, CHECK_DELAY } check_fault_kind;

#endif
