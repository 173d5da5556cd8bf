/* SPDX-License-Identifier: Apache-2.0 */
/* The list of tests, verdicts, and the clock. */
#include "cli/check/suite.h"

#include "cli/message.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void decide(const check_case *c, check_state state, const char *format, va_list arguments) {
    if (atomic_exchange(&c->verdict->claimed, 1)) return;
    vsnprintf(c->verdict->text, sizeof c->verdict->text, format, arguments);
    atomic_store(&c->verdict->state, state);
}

void check_fail(const check_case *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    decide(c, CHECK_FAILED, format, arguments);
    va_end(arguments);
}

void check_skip(const check_case *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    decide(c, CHECK_SKIPPED, format, arguments);
    va_end(arguments);
}

void check_note(const check_case *c, const char *format, ...) {
    va_list arguments;
    size_t used = strlen(c->verdict->note);
    va_start(arguments, format);
    vsnprintf(c->verdict->note + used, sizeof c->verdict->note - used, format, arguments);
    va_end(arguments);
}

int check_failed(const check_case *c) { return atomic_load(&c->verdict->claimed); }

/* The list is built before anything runs: without memory for it there is nothing to go on with. */
static void *need(void *memory) {
    if (!memory) exit(cli_fail("no memory for the list of tests"));
    return memory;
}

void check_add(check_list *list, const char *suite, double limit_s, check_body *body, const void *argument,
               const char *name, ...) {
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 64;
        list->tests = need(realloc(list->tests, list->room * sizeof *list->tests));
    }
    check_test *test = &list->tests[list->count++];
    *test = (check_test){.suite = suite, .limit_s = limit_s, .body = body, .argument = argument};
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(test->name, sizeof test->name, name, arguments);
    va_end(arguments);
}

const void *check_keep(check_list *list, const void *value, size_t bytes) {
    list->kept = need(realloc(list->kept, (list->kept_count + 1) * sizeof *list->kept));
    void *copy = need(malloc(bytes));
    memcpy(copy, value, bytes);
    list->kept[list->kept_count++] = copy;
    return copy;
}

void check_list_free(check_list *list) {
    for (size_t i = 0; i < list->kept_count; i++) free(list->kept[i]);
    free(list->kept);
    free(list->tests);
    *list = (check_list){0};
}

double check_patience(void) {
#if defined(__SANITIZE_THREAD__)
    return 15;
#elif defined(__SANITIZE_ADDRESS__)
    return 5;
#else
    return 1;
#endif
}

double check_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void check_sleep(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    while (nanosleep(&t, &t) != 0) {
    }
}
