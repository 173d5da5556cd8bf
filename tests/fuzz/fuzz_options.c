/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines against the option table of every subcommand. cli_parse and cli_usage are wrapped at link time: a
 * subcommand is started as usual and fills in its defaults, the wrapped parser parses what the fuzzer has drawn from
 * that table, and then ends the subcommand as after a bad command line, so nothing is run.
 */
#include "tests/fuzz/input.h"

#include "cli/commands.h"
#include "cli/message.h"
#include "cli/options.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { MOST_ARGUMENTS = 24, MOST_POSITIONALS = 8, MOST_OPTIONS = 64 };

typedef int subcommand(int argc, char **argv);
#define SUBCOMMAND(name, summary) ferry_cmd_##name,
static subcommand *const subcommands[] = {FERRY_COMMANDS(SUBCOMMAND)};

int __real_cli_parse(const cli_command *command, int argc, char **argv, void *values, const char **positionals,
                     int *exit_code);
int __wrap_cli_parse(const cli_command *command, int argc, char **argv, void *values, const char **positionals,
                     int *exit_code);
int __wrap_cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

static fuzz_input input;
static int parsed;

int __wrap_cli_usage(const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    FUZZ_CHECK(line[0] != '\0', "an empty message");
    return CLI_USAGE;
}

/* "--name", "--name=text", "text", or one of the option's own words; for the caller to free. */
static char *draw_argument(const cli_command *command, int options) {
    uint8_t form = fuzz_byte(&input);
    if (form < 64 || options == 0) return fuzz_text(&input);
    const cli_option *option = &command->options[form % options];
    char *argument = malloc(512), *text = NULL;
    if (!argument) exit(2);
    if (form < 128) {
        snprintf(argument, 512, "--%s", option->name);
    } else if (form < 192 && option->words) {
        int words = 0;
        while (option->words[words].word) words++;
        snprintf(argument, 512, "--%s=%s", option->name, option->words[fuzz_choice(&input, 0, words - 1)].word);
    } else {
        text = fuzz_text(&input);
        snprintf(argument, 512, "--%s=%s", option->name, text);
    }
    free(text);
    return argument;
}

static int is_word(const cli_option *option, int64_t value) {
    for (const cli_word *word = option->words; word && word->word; word++)
        if (word->value == value) return 1;
    return 0;
}

/* What was stored is what the table allows. `before`: what the option held when parsing began. */
static void check_option(const cli_option *option, const void *at, int64_t before, char **argv, int argc) {
    int64_t whole;
    double real;
    memcpy(&whole, at, sizeof whole);
    memcpy(&real, at, sizeof real);
    if (whole == before) return;
    int any = option->min == 0 && option->max == 0;
    switch (option->kind) {
    case CLI_FLAG:
        FUZZ_CHECK(whole == 0 || whole == 1, "--%s holds %lld", option->name, (long long)whole);
        break;
    case CLI_INT:
        FUZZ_CHECK(any || is_word(option, whole) || (whole >= option->min && whole <= option->max), "--%s holds %lld",
                   option->name, (long long)whole);
        break;
    case CLI_DOUBLE:
        FUZZ_CHECK(isfinite(real) && (any || (real >= (double)option->min && real <= (double)option->max)),
                   "--%s holds %g", option->name, real);
        break;
    case CLI_CHOICE:
        FUZZ_CHECK(is_word(option, whole), "--%s holds %lld", option->name, (long long)whole);
        break;
    case CLI_STRING: {
        const char *text = (const char *)(intptr_t)whole;
        int inside = 0;
        for (int i = 1; i < argc; i++) inside |= text >= argv[i] && text <= argv[i] + strlen(argv[i]);
        FUZZ_CHECK(inside, "--%s points elsewhere", option->name);
        break;
    }
    }
}

int __wrap_cli_parse(const cli_command *command, int argc, char **argv, void *values, const char **positionals,
                     int *exit_code) {
    char *drawn[MOST_ARGUMENTS + 1] = {argv[0]};
    int64_t before[MOST_OPTIONS];
    int options = 0, wanted = 0, count = 1;
    (void)argc;
    parsed = 1;
    while (command->options && command->options[options].name) options++;
    while (command->positionals && command->positionals[wanted].name) wanted++;
    FUZZ_CHECK(options <= MOST_OPTIONS && wanted <= MOST_POSITIONALS, "%d options", options);
    for (int i = 0; i < options; i++) memcpy(&before[i], (char *)values + command->options[i].at, sizeof before[i]);
    while (count < MOST_ARGUMENTS && fuzz_left(&input) > 0) drawn[count++] = draw_argument(command, options);

    int good = __real_cli_parse(command, count, drawn, values, positionals, exit_code);
    FUZZ_CHECK(good || *exit_code == CLI_OK || *exit_code == CLI_USAGE, "exit code %d", *exit_code);
    for (int i = 0; i < options && good; i++)
        check_option(&command->options[i], (char *)values + command->options[i].at, before[i], drawn, count);
    for (int i = 0; i < wanted && good; i++) FUZZ_CHECK(strlen(positionals[i]) < 4096, "argument %d", i);
    for (int i = 1; i < count; i++) free(drawn[i]);
    *exit_code = CLI_USAGE;
    return 0;
}

/* --help goes where nobody reads it. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return freopen("/dev/null", "w", stdout) ? 0 : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char name[] = "fuzz", *argv[] = {name, NULL};
    input = fuzz_input_of(data, size);
    parsed = 0;
    int code = subcommands[fuzz_choice(&input, 0, sizeof subcommands / sizeof *subcommands - 1)](1, argv);
    FUZZ_CHECK(parsed && code == CLI_USAGE, "the subcommand went on: %d", code);
    return 0;
}
