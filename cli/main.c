/* SPDX-License-Identifier: Apache-2.0 */
/* The command `ferry`: finds the subcommand and calls it. */
#include "cli/commands.h"
#include "cli/message.h"
#include "cli/options.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command_entry {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command_entry;

#define COMMAND_ENTRY(name, summary) {#name, summary, ferry_cmd_##name},
static const command_entry commands[] = {FERRY_COMMANDS(COMMAND_ENTRY)};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *to) {
    fprintf(to, "Usage: ferry COMMAND [ARGUMENT]...\n\n"
                "An expert-parallel mixture-of-experts layer, forward and backward, as one overlapped pipeline.\n\n"
                "Commands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++) fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fprintf(to,
            "\n  ferry COMMAND --help   what a command does and its options, with examples; also: ferry help COMMAND\n"
            "  ferry --version        the version\n\n"
            "Exit codes: 0 success, 1 the work failed or a file is bad, 2 the command line is bad.\n");
}

/* A stream that was closed before the start would become the next file or socket, and messages would go there. Writing
 * to this one fails. */
static void open_streams(void) {
    int fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
    if (fd >= 0) close(fd);
}

static int command_of(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ferry %s\n", ferry_version());
        return CLI_OK;
    }
    if (strcmp(argv[1], "--man") == 0) return cli_man_page();
    if (strcmp(argv[1], "help") == 0) {
        if (argc > 3) return cli_usage("unexpected argument '%s'", argv[3]);
        char help[] = "--help", *asked[] = {argv[0], argc > 2 ? argv[2] : help, help, NULL};
        return command_of(3, asked);
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        cli_message_command(commands[i].name);
        return commands[i].run(argc - 1, argv + 1);
    }
    return cli_usage("unknown command '%s'", argv[1]);
}

int main(int argc, char **argv) {
    open_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing it */
    return cli_finish(command_of(argc, argv));
}
