/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --help, from the same table that parses. */
#include "cli/options.h"

#include <string.h>

enum { HELP_WIDTH = 100, HELP_INDENT = 28 };

/* Words of `text` from column `column` on, later lines indented by `indent`; '\n' in the text starts a new line. */
static void print_wrapped(FILE *to, const char *text, int column, int indent) {
    while (*text) {
        size_t length = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)length > HELP_WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        if (column > indent) column += fprintf(to, " ");
        fprintf(to, "%.*s", (int)length, text);
        column += (int)length;
        text += length;
        if (*text == '\n') {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        if (*text) text++;
    }
    fprintf(to, "\n");
}

void cli_option_usage(const cli_option *option, char *to, size_t room) {
    int used = snprintf(to, room, "--%s", option->name);
    const char *separator = " ";
    for (const cli_word *word = option->words; word && word->word; word++) {
        used += snprintf(to + used, room - (size_t)used, "%s%s", separator, word->word);
        separator = "|";
    }
    if (option->argument) snprintf(to + used, room - (size_t)used, "%s%s", separator, option->argument);
}

static void print_entry(FILE *to, const char *name, const char *help) {
    int column = fprintf(to, "  %s", name);
    if (column + 2 > HELP_INDENT) {
        fprintf(to, "\n");
        column = 0;
    }
    fprintf(to, "%*s", HELP_INDENT - column, "");
    print_wrapped(to, help, HELP_INDENT, HELP_INDENT);
}

void cli_help(const cli_command *command, FILE *to) {
    fprintf(to, "Usage: ferry %s", command->name);
    for (const cli_positional *p = command->positionals; p && p->name; p++) fprintf(to, " %s", p->name);
    fprintf(to, " [OPTION]...\n\n");
    print_wrapped(to, command->about, 0, 0);
    if (command->positionals) fprintf(to, "\nArguments:\n");
    for (const cli_positional *p = command->positionals; p && p->name; p++) print_entry(to, p->name, p->help);
    fprintf(to, "\nOptions:\n");
    for (const cli_option *option = command->options; option && option->name; option++) {
        char name[128];
        cli_option_usage(option, name, sizeof name);
        print_entry(to, name, option->help);
    }
    print_entry(to, "--help", "print this text");
    if (command->examples) fprintf(to, "\nExamples:\n");
    for (const char *line = command->examples; line && *line;) {
        size_t length = strcspn(line, "\n");
        fprintf(to, "  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}
