/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry check`: runs the suites and says what came out. */
#include "cli/commands.h"
#include "cli/message.h"
#include "cli/options.h"

#include "cli/check/gpu.h"
#include "cli/check/worker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const cli_word backends[] = {{"cpu", FERRY_CPU}, {"cuda", FERRY_CUDA}, {NULL, 0}};
static const cli_word kinds[] = {{"kill", CHECK_KILL}, {"stop", CHECK_STOP}, {"delay", CHECK_DELAY}, {NULL, 0}};
static const cli_word phases[] = {
#define PHASE_WORD(NAME, name) {#name, FERRY_PHASE_##NAME + 1},
    FERRY_PHASE_MAP(PHASE_WORD)
#undef PHASE_WORD
        {NULL, 0}};

typedef enum suite_place {
#define SUITE_PLACE(name) SUITE_##name,
    CHECK_SUITES(SUITE_PLACE)
#undef SUITE_PLACE
        SUITE_COUNT
} suite_place;

typedef struct suite_entry {
    const char *name;
    void (*fill)(check_list *list, const check_options *options);
} suite_entry;

static const suite_entry suites[SUITE_COUNT] = {
#define SUITE_ENTRY(name) {#name, check_suite_##name},
    CHECK_SUITES(SUITE_ENTRY)
#undef SUITE_ENTRY
};
static const cli_word suite_words[] = {
#define SUITE_WORD(name) {#name, SUITE_##name + 1},
    CHECK_SUITES(SUITE_WORD)
#undef SUITE_WORD
        {NULL, 0}};

static const cli_option option_table[] = {
    {.name = "suite",
     .kind = CLI_CHOICE,
     .at = offsetof(check_options, suite),
     .words = suite_words,
     .help = "only this suite (on GPUs one of the first four)"},
    {.name = "list", .kind = CLI_FLAG, .at = offsetof(check_options, list), .help = "print the tests, run nothing"},
    {.name = "long",
     .kind = CLI_FLAG,
     .at = offsetof(check_options, long_tier),
     .help = "the long tier: more random cases, more than 2^31 elements, a start 90 s late"},
    {.name = "backend",
     .kind = CLI_CHOICE,
     .at = offsetof(check_options, backend),
     .words = backends,
     .help = "where the layer runs (default cpu)"},
    {.name = "seed",
     .kind = CLI_INT,
     .at = offsetof(check_options, seed),
     .argument = "S",
     .min = 0,
     .max = 1000000000000,
     .help = "seed of the first case of the property suite (default 1)"},
    {.name = "cases",
     .kind = CLI_INT,
     .at = offsetof(check_options, cases),
     .argument = "N",
     .min = 1,
     .max = 1000000,
     .help = "how many cases the property suite runs (default 80; 1500 with --long)"},
    {.name = "overlap",
     .kind = CLI_FLAG,
     .at = offsetof(check_options, overlap),
     .group = "only",
     .help = "only the overlap suite: every unit of work sleeps 3 ms, and the sleeps must overlap"},
    {.name = "fault",
     .kind = CLI_CHOICE,
     .at = offsetof(check_options, fault),
     .words = kinds,
     .group = "only",
     .help = "only this kind of the fault suite: a rank is killed, stopped or delayed inside a call"},
    {.name = "phase",
     .kind = CLI_CHOICE,
     .at = offsetof(check_options, phase),
     .words = phases,
     .help = "with --fault: only in this phase of a call"},
    {.name = "json", .kind = CLI_FLAG, .at = offsetof(check_options, json), .help = "print one JSON object"},
    {0}};

static const cli_command command = {
    .name = "check",
    .about = "Tests this build on this machine: the layer against a reference in double precision, the same bits from "
             "every way of running it, memory, errors, faults and overlap. Every test runs in a process of its own.\n"
             "Exit code 0 when nothing failed, 1 otherwise, and where the backend cannot be used.",
    .options = option_table,
    .examples = "ferry check\n"
                "ferry check --long\n"
                "ferry check --suite property --seed 42 --cases 1\n"
                "ferry check --overlap\n"
                "ferry check --fault kill --phase pull\n"};

/* The others look inside the CPU backend: its workers, its allocations, its observer. */
static int suits_backend(int suite, const check_options *options) {
    return options->backend == FERRY_CPU || suite == SUITE_cases || suite == SUITE_property || suite == SUITE_bits ||
           suite == SUITE_life;
}

static int fill_list(check_list *list, const check_options *options) {
    int64_t wanted = options->overlap ? SUITE_overlap + 1 : options->fault ? SUITE_fault + 1 : options->suite;
    for (int i = 0; i < SUITE_COUNT; i++) {
        if (wanted && wanted != i + 1) continue;
        int suits = suits_backend(i, options);
        if (wanted && !suits) return cli_usage("the suite '%s' is not for GPUs", suites[i].name);
        if (suits) suites[i].fill(list, options);
    }
    return CLI_OK;
}

/* ---- Output ---- */

static const char *const state_words[] = {
    [CHECK_PASSED] = "ok", [CHECK_FAILED] = "FAILED", [CHECK_SKIPPED] = "skipped"};
static const char *const state_keys[] = {
    [CHECK_PASSED] = "passed", [CHECK_FAILED] = "failed", [CHECK_SKIPPED] = "skipped"};

/* On a terminal only: one line that the next one overwrites. */
static void show_progress(const check_list *list, size_t done) {
    enum { BAR = 30 };
    char bar[BAR + 1];
    size_t full = done * BAR / list->count;
    for (size_t i = 0; i < BAR; i++) bar[i] = i < full ? '=' : ' ';
    bar[BAR] = '\0';
    printf("[%s] %zu/%zu %.60s", bar, done, list->count, list->tests[done].name);
    fflush(stdout);
}

static void show_outcome(const check_test *test, const check_outcome *outcome) {
    printf("%-8s %-8s %s (%.2f s)\n", state_words[outcome->state], test->suite, test->name, outcome->seconds);
    for (const char *line = outcome->text; *line;) {
        size_t length = strcspn(line, "\n");
        printf("         %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    fflush(stdout);
}

static json_t *outcome_json(const check_test *test, const check_outcome *outcome) {
    return json_pack("{s:s, s:s, s:s, s:f, s:s}", "suite", test->suite, "name", test->name, "result",
                     state_keys[outcome->state], "seconds", outcome->seconds, "text", outcome->text);
}

static int run_list(const check_list *list, const check_options *options) {
    /* A GPU's start takes longer than most tests. */
    check_worker worker = {.list = list, .options = options};
    int together = options->backend == FERRY_CUDA;
    int64_t counts[3] = {0};
    int bar = isatty(STDOUT_FILENO) && !options->json;
    json_t *results = options->json ? json_array() : NULL;
    for (size_t i = 0; i < list->count; i++) {
        check_outcome outcome;
        if (bar) show_progress(list, i);
        if (together)
            check_worker_run(&worker, i, &outcome);
        else
            check_run_test(&list->tests[i], options, &outcome);
        counts[outcome.state]++;
        if (bar) printf("\r\033[K");
        if (results)
            json_array_append_new(results, outcome_json(&list->tests[i], &outcome));
        else
            show_outcome(&list->tests[i], &outcome);
    }
    check_worker_stop(&worker);
    int code = counts[CHECK_FAILED] ? CLI_FAILED : CLI_OK;
    if (results) {
        int printed = cli_print_json(json_pack("{s:I, s:I, s:I, s:o}", "passed", (json_int_t)counts[CHECK_PASSED],
                                               "failed", (json_int_t)counts[CHECK_FAILED], "skipped",
                                               (json_int_t)counts[CHECK_SKIPPED], "tests", results));
        return code ? code : printed;
    }
    printf("%lld passed, %lld failed", (long long)counts[CHECK_PASSED], (long long)counts[CHECK_FAILED]);
    if (counts[CHECK_SKIPPED]) printf(", %lld skipped", (long long)counts[CHECK_SKIPPED]);
    printf("\n");
    if (options->no_backward[0]) printf("only the forward was run: %s\n", options->no_backward);
    return code;
}

static int print_list(const check_list *list, const check_options *options) {
    json_t *tests = options->json ? json_array() : NULL;
    for (size_t i = 0; i < list->count; i++) {
        const check_test *test = &list->tests[i];
        if (options->json)
            json_array_append_new(tests, json_pack("{s:s, s:s}", "suite", test->suite, "name", test->name));
        else
            printf("%-8s %s\n", test->suite, test->name);
    }
    return options->json ? cli_print_json(json_pack("{s:o}", "tests", tests)) : CLI_OK;
}

int ferry_cmd_check(int argc, char **argv) {
    check_options options = {.backend = FERRY_CPU, .seed = 1};
    check_list list = {0};
    int code;
    if (!cli_parse(&command, argc, argv, &options, NULL, &code)) return code;
    if (options.phase && !options.fault) return cli_usage("--phase needs --fault");
    char missing[240] = "";
    int found = options.list || check_backend_find(&options, missing, sizeof missing);
    code = fill_list(&list, &options);
    if (!code && !found) code = cli_fail("nothing was tested: %s", missing);
    if (!code) code = options.list ? print_list(&list, &options) : run_list(&list, &options);
    check_list_free(&list);
    return code;
}
