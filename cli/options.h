/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines by table: one cli_command per subcommand gives parsing, `--help` and the manual page. Values land in
 * a struct of the subcommand, which fills in the defaults before it parses.
 *
 *     typedef struct values { int64_t steps, isa; int64_t json; const char *save; } values;
 *     static const cli_word isas[] = {{"portable", FERRY_ISA_PORTABLE}, {"avx2", FERRY_ISA_AVX2}, {NULL, 0}};
 *     static const cli_option options[] = {
 *         {.name = "steps", .kind = CLI_INT, .at = offsetof(values, steps), .argument = "N", .min = 1,
 *          .max = 1000000, .help = "optimizer steps (default 300)"},
 *         {.name = "isa", .kind = CLI_CHOICE, .at = offsetof(values, isa), .words = isas, .help = "..."},
 *         {.name = "save", .kind = CLI_STRING, .at = offsetof(values, save), .argument = "FILE", .help = "..."},
 *         {.name = "json", .kind = CLI_FLAG, .at = offsetof(values, json), .help = "print one JSON object"},
 *         {0}};
 *     static const cli_command command = {.name = "train", .options = options, .about = "...", .examples = "..."};
 *
 *     values v = {.steps = 300};
 *     int code;
 *     if (!cli_parse(&command, argc, argv, &v, NULL, &code)) return code;
 */
#ifndef FERRY_CLI_OPTIONS_H
#define FERRY_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cli_kind {
    CLI_FLAG,   /* no argument; stores 1, or 0 when `clears`, in an int64_t */
    CLI_INT,    /* int64_t in min..max, or one of `words` when there are any */
    CLI_DOUBLE, /* finite double in min..max */
    CLI_CHOICE, /* one of `words`: its value in an int64_t */
    CLI_STRING  /* const char *, pointing into argv */
} cli_kind;

typedef struct cli_word {
    const char *word; /* NULL ends the list */
    int64_t value;
} cli_word;

typedef struct cli_option {
    const char *name; /* without the dashes; NULL ends the table */
    cli_kind kind;
    size_t at;             /* offset in the values struct */
    int clears;            /* CLI_FLAG */
    int64_t min, max;      /* CLI_INT, CLI_DOUBLE: both 0 means any value */
    const cli_word *words; /* CLI_CHOICE, CLI_INT */
    const char *group;     /* options of one group exclude each other; NULL: none */
    const char *argument;  /* what help calls the value; a choice shows its words */
    const char *help;      /* a sentence or two; wrapped when printed */
} cli_option;

/* A required argument without dashes. */
typedef struct cli_positional {
    const char *name; /* NULL ends the table */
    const char *help;
} cli_positional;

typedef struct cli_command {
    const char *name;
    const char *about;                 /* paragraphs separated by '\n' */
    const cli_positional *positionals; /* NULL: none */
    const cli_option *options;         /* NULL: none */
    const char *examples;              /* lines of shell */
} cli_command;

/*
 * Parses argv[1..]. 1: go on. 0: end with *exit_code (0 after --help; 2 after a bad command line, which has been
 * explained on stderr; 0 after --man too, which cli_man_page uses). `--name value` and `--name=value`; `--` ends the
 * options; a repeated option counts last. `positionals` receives one pointer per entry of the command's table and may
 * be NULL when it has none.
 */
int cli_parse(const cli_command *command, int argc, char **argv, void *values, const char **positionals,
              int *exit_code);

/* What --help prints. */
void cli_help(const cli_command *command, FILE *to);
/* The command's section of the manual page, which --man prints. */
void cli_man(const cli_command *command, FILE *to);
/* Prints the whole page, in roff. 0, or the exit code after a message. */
int cli_man_page(void);
/* "--context saved|recompute|ROWS" */
void cli_option_usage(const cli_option *option, char *to, size_t room);

#endif
