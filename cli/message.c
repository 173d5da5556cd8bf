/* SPDX-License-Identifier: Apache-2.0 */
/* Messages are composed first and written by one call, so that lines of several ranks do not mix. */
#include "cli/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *message_command;

void cli_message_command(const char *name) { message_command = name; }

static void say(const char *tail, const char *format, va_list arguments) {
    char line[2048];
    size_t room = sizeof line - strlen(tail) - 2;
    int head = message_command ? snprintf(line, room, "ferry %s: ", message_command) : snprintf(line, room, "ferry: ");
    int body = vsnprintf(line + head, room - (size_t)head, format, arguments);
    size_t used = (size_t)head + (body > 0 ? (size_t)body : 0);
    if (used > room - 1) used = room - 1;
    used += (size_t)snprintf(line + used, sizeof line - used, "%s\n", tail);
    fwrite(line, 1, used, stderr);
}

void cli_note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("", format, arguments);
    va_end(arguments);
}

int cli_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("", format, arguments);
    va_end(arguments);
    return CLI_FAILED;
}

int cli_usage(const char *format, ...) {
    char tail[96];
    snprintf(tail, sizeof tail, "\nTry: ferry %s%s--help", message_command ? message_command : "",
             message_command ? " " : "");
    va_list arguments;
    va_start(arguments, format);
    say(tail, format, arguments);
    va_end(arguments);
    return CLI_USAGE;
}

int cli_fail_status(ferry_status status, const char *doing) {
    const char *sentence = ferry_last_error();
    return cli_fail("%s: %s: %s", doing, ferry_status_name(status), *sentence ? sentence : ferry_status_text(status));
}

int cli_print_json(json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(object);
    if (!text) return cli_fail("no memory for the JSON output");
    int bad = puts(text) < 0 || fflush(stdout) != 0;
    free(text);
    return bad ? cli_fail("cannot write to standard output") : CLI_OK;
}

int cli_finish(int code) {
    int bad = fflush(stdout) != 0 || ferror(stdout);
    return bad && !code ? cli_fail("cannot write to standard output") : code;
}
