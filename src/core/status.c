/* SPDX-License-Identifier: Apache-2.0 */
/* Status names and texts, and the sentence of the last failure of each thread. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];

const char *ferry_status_name(ferry_status status) {
    switch ((int)status) {
#define STATUS_NAME(name, number, text)                                                                                \
    case number:                                                                                                       \
        return "FERRY_" #name;
        FERRY_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    default:
        return "FERRY_UNKNOWN_STATUS";
    }
}

const char *ferry_status_text(ferry_status status) {
    switch ((int)status) {
#define STATUS_TEXT(name, number, text)                                                                                \
    case number:                                                                                                       \
        return text;
        FERRY_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    default:
        return "not a status of Ferry";
    }
}

const char *ferry_last_error(void) { return last_error; }

ferry_status fy_fail(ferry_status status, const char *format, ...) {
    /* Formatted aside first: an argument may be the previous sentence itself. */
    char sentence[sizeof last_error];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    memcpy(last_error, sentence, sizeof sentence);
    return status;
}
