/* SPDX-License-Identifier: Apache-2.0 */
/* What the command says to people: one line on stderr per message, "ferry NAME: sentence". Results go to stdout. */
#ifndef FERRY_CLI_MESSAGE_H
#define FERRY_CLI_MESSAGE_H

#include "ferry/ferry.h"

#include <jansson.h>

typedef enum cli_exit_code {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the work failed, or a file or its contents are bad */
    CLI_USAGE = 2   /* the command line is bad, or asks for what the input cannot give */
} cli_exit_code;

/* The subcommand that messages name; set once by main before the subcommand starts. `name` is kept, not copied. */
void cli_message_command(const char *name);

/* A remark; the work goes on. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what failed and returns CLI_FAILED. */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what is wrong with the command line, points to --help and returns CLI_USAGE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what a library call reported (its status name and ferry_last_error()) and returns CLI_FAILED. */
int cli_fail_status(ferry_status status, const char *doing);

/* Prints the object as one line of JSON on stdout, keys in the order of insertion, and drops the reference.
 * NULL counts as out of memory. Returns CLI_OK, or CLI_FAILED with a message. */
int cli_print_json(json_t *object);

/* What a process ends with: `code`, or CLI_FAILED with a message when that is CLI_OK but stdout did not take it all. */
int cli_finish(int code);

#endif
