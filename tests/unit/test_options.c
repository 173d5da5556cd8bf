/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines by table: what is stored, what is refused, what help shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/message.h"
#include "cli/options.h"

typedef struct values {
    int64_t steps, isa, context, processes, json;
    double limit;
    const char *save;
} values;

static const cli_word isas[] = {{"portable", 10}, {"avx2", 20}, {NULL, 0}};
static const cli_word contexts[] = {{"saved", -2}, {"recompute", 0}, {NULL, 0}};
static const cli_option options[] = {
    {.name = "steps",
     .kind = CLI_INT,
     .at = offsetof(values, steps),
     .min = 1,
     .max = 1000,
     .argument = "N",
     .help = "how many"},
    {.name = "isa", .kind = CLI_CHOICE, .at = offsetof(values, isa), .words = isas, .help = "which"},
    {.name = "context",
     .kind = CLI_INT,
     .at = offsetof(values, context),
     .words = contexts,
     .min = 1,
     .max = 9,
     .argument = "ROWS",
     .help = "how much"},
    {.name = "limit", .kind = CLI_DOUBLE, .at = offsetof(values, limit), .max = 10, .argument = "L", .help = "bound"},
    {.name = "save", .kind = CLI_STRING, .at = offsetof(values, save), .argument = "FILE", .help = "where"},
    {.name = "threads",
     .kind = CLI_FLAG,
     .at = offsetof(values, processes),
     .clears = 1,
     .group = "mode",
     .help = "one way"},
    {.name = "processes", .kind = CLI_FLAG, .at = offsetof(values, processes), .group = "mode", .help = "another"},
    {.name = "json", .kind = CLI_FLAG, .at = offsetof(values, json), .help = "a flag"},
    {0}};
static const cli_positional positionals[] = {{"IN", "input"}, {"OUT", "output"}, {NULL, NULL}};
static const cli_command command = {.name = "test",
                                    .about = "First.\n\nSecond.",
                                    .positionals = positionals,
                                    .options = options,
                                    .examples = "ferry test a b\nferry test c d"};

static const values defaults = {.steps = 7, .isa = 1, .context = -1, .processes = 5, .limit = 0.5};
static const char *found[2];

/* Parses "test" and the words of `line`. Returns -1 for go on, else the exit code. */
static int parse(values *v, const char *line) {
    static char copy[512]; /* static: stored strings point into it */
    char *argv[16] = {"test"};
    int argc = 1, code = -7;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    *v = defaults;
    found[0] = found[1] = NULL;
    return cli_parse(&command, argc, argv, v, found, &code) ? -1 : code;
}

static void stores_every_kind(void **state) {
    (void)state;
    values v;
    assert_int_equal(parse(&v, "a --steps 12 --isa=avx2 b --context 3 --limit 1.5 --save f --processes --json"), -1);
    assert_string_equal(found[0], "a");
    assert_string_equal(found[1], "b");
    assert_int_equal(v.steps, 12);
    assert_int_equal(v.isa, 20);
    assert_int_equal(v.context, 3);
    assert_true(v.limit == 1.5);
    assert_string_equal(v.save, "f");
    assert_int_equal(v.processes, 1);
    assert_int_equal(v.json, 1);
}

static void keeps_defaults(void **state) {
    (void)state;
    values v;
    assert_int_equal(parse(&v, "a b"), -1);
    assert_memory_equal(&v, &defaults, sizeof v);
}

static void accepts_the_edges(void **state) {
    (void)state;
    values v;
    assert_int_equal(parse(&v, "a b --steps 1 --context recompute --threads --save=--x"), -1);
    assert_int_equal(v.steps, 1);
    assert_int_equal(v.context, 0);
    assert_int_equal(v.processes, 0);
    assert_string_equal(v.save, "--x");
    assert_int_equal(parse(&v, "a b --steps 1000 --context saved --limit 10"), -1);
    assert_int_equal(v.steps, 1000);
    assert_int_equal(v.context, -2);
    assert_int_equal(parse(&v, "a b --steps 3 --steps 4 --threads --threads"), -1);
    assert_int_equal(v.steps, 4);
    assert_int_equal(parse(&v, "-- --a -b"), -1);
    assert_string_equal(found[0], "--a");
    assert_string_equal(found[1], "-b");
    assert_int_equal(parse(&v, "- -"), -1);
}

static void refuses(void **state) {
    (void)state;
    static const char *const lines[] = {"a",
                                        "a b c",
                                        "a b --nope",
                                        "a b -s 1",
                                        "a b --step 1",
                                        "a b --steps",
                                        "a b --steps --json",
                                        "a b --steps 0",
                                        "a b --steps 1001",
                                        "a b --steps 1x",
                                        "a b --steps=",
                                        "a b --steps -1",
                                        "a b --steps 99999999999999999999",
                                        "a b --isa sse",
                                        "a b --isa 10",
                                        "a b --context 10",
                                        "a b --context all",
                                        "a b --limit x",
                                        "a b --limit nan",
                                        "a b --limit inf",
                                        "a b --limit -0.1",
                                        "a b --limit 10.5",
                                        "a b --json=1",
                                        "a b --threads --processes",
                                        "a b --processes --json --threads",
                                        "a b --=1",
                                        "a b --save"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        values v;
        if (parse(&v, lines[i]) != CLI_USAGE) fail_msg("accepted: %s", lines[i]);
    }
}

static void help_shows_the_table(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    cli_help(&command, to);
    fclose(to);
    static const char *const parts[] = {"Usage: ferry test IN OUT [OPTION]...\n\nFirst.\n\nSecond.\n",
                                        "\n  IN                        input\n",
                                        "\n  --isa portable|avx2       which\n",
                                        "\n  --context saved|recompute|ROWS\n                            how much\n",
                                        "\n  --steps N                 how many\n",
                                        "\nExamples:\n  ferry test a b\n  ferry test c d\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(text, parts[i])) fail_msg("help lacks '%s':\n%s", parts[i], text);
    }
    free(text);
}

static void help_ends_the_command(void **state) {
    (void)state;
    values v;
    assert_int_equal(parse(&v, "--help --nope"), CLI_OK);
    assert_int_equal(parse(&v, "a -h"), CLI_OK);
    assert_int_equal(parse(&v, "--nope --help"), CLI_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_every_kind),    cmocka_unit_test(keeps_defaults),
        cmocka_unit_test(accepts_the_edges),    cmocka_unit_test(refuses),
        cmocka_unit_test(help_shows_the_table), cmocka_unit_test(help_ends_the_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
