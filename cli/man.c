/* SPDX-License-Identifier: Apache-2.0 */
/* The manual page ferry(1), from the tables that parse: `ferry --man` writes it. */
#include "cli/commands.h"
#include "cli/message.h"
#include "cli/options.h"

#include <stdio.h>
#include <string.h>

/* Text of a table. An empty line begins a paragraph, the end of a line a line; what means something to roff is escaped.
 */
static void put_text(FILE *to, const char *text, const char *paragraph) {
    int line_start = 1;
    for (const char *c = text; *c; c++) {
        if (*c == '\n') {
            int empty = c[1] == '\n';
            fprintf(to, "\n%s\n", empty ? paragraph : ".br");
            c += empty;
            line_start = 1;
            continue;
        }
        if (line_start && (*c == '.' || *c == '\'')) fputs("\\&", to);
        line_start = 0;
        if (*c == '-') {
            fputs("\\-", to);
        } else if (*c == '\\') {
            fputs("\\e", to);
        } else {
            fputc(*c, to);
        }
    }
    fputc('\n', to);
}

static void put_entry(FILE *to, const char *name, const char *help) {
    fputs(".TP\n.B ", to);
    put_text(to, name, ".PP");
    put_text(to, help, ".IP");
}

static void put_examples(FILE *to, const char *lines) {
    fputs(".PP\nExamples:\n.PP\n.RS 4\n.nf\n", to);
    for (const char *line = lines; *line;) {
        char one[256];
        size_t length = strcspn(line, "\n");
        snprintf(one, sizeof one, "%.*s", (int)length, line);
        put_text(to, one, "");
        line += length + (line[length] == '\n');
    }
    fputs(".fi\n.RE\n", to);
}

void cli_man(const cli_command *command, FILE *to) {
    fprintf(to, ".SS ferry %s", command->name);
    for (const cli_positional *p = command->positionals; p && p->name; p++) fprintf(to, " %s", p->name);
    fputs(" [OPTION]...\n", to);
    put_text(to, command->about, ".PP");
    for (const cli_positional *p = command->positionals; p && p->name; p++) put_entry(to, p->name, p->help);
    for (const cli_option *option = command->options; option && option->name; option++) {
        char name[128];
        cli_option_usage(option, name, sizeof name);
        put_entry(to, name, option->help);
    }
    put_entry(to, "--help", "print what this page says about the command");
    if (command->examples) put_examples(to, command->examples);
}

int cli_man_page(void) {
    FILE *to = stdout;
    fprintf(to,
            ".\\\" SPDX-License-Identifier: Apache-2.0\n"
            ".\\\" Written by ferry \\-\\-man.\n"
            ".TH FERRY 1 \"\" \"ferry %s\" \"User Commands\"\n"
            ".SH NAME\nferry \\- expert\\-parallel mixture\\-of\\-experts layer\n"
            ".SH SYNOPSIS\n.B ferry\n.I COMMAND\n[\\fIARGUMENT\\fR]...\n.br\n"
            ".B ferry\nhelp [\\fICOMMAND\\fR] | \\-\\-help | \\-\\-version\n"
            ".SH DESCRIPTION\n"
            "Ferry computes a mixture\\-of\\-experts layer, forward and backward, as one overlapped pipeline over\n"
            "several ranks, with the same bits on any number of them. This command runs, measures, explains and tests\n"
            "the layer, and trains a small language model with it.\n"
            ".SH COMMANDS\n",
            ferry_version());
#define MAN_LINE(name, summary) put_entry(to, #name, summary);
    FERRY_COMMANDS(MAN_LINE)
#undef MAN_LINE
    int code = CLI_OK;
#define MAN_COMMAND(name, summary)                                                                                     \
    if (!code) code = ferry_cmd_##name(2, (char *[]){#name, "--man", NULL});
    FERRY_COMMANDS(MAN_COMMAND)
#undef MAN_COMMAND
    fputs(".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nthe work failed, or a file is bad\n.TP\n2\n"
          "the command line is bad\n"
          ".SH FILES\n.TP\n.I share/ferry/data\n"
          "beside the folder of the program: the text that ferry train learns by default, and the descriptions of\n"
          "machines that ferry plan knows\n"
          ".SH SEE ALSO\nThe library is described in its header,\n.IR ferry/ferry.h .\n",
          to);
    return fflush(to) == 0 && !ferror(to) ? code : cli_fail("cannot write the manual page");
}
