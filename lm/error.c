/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence of the last failure, one per thread. */
#include "lm/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[1024];

int lm_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return -1;
}

int lm_fail_status(ferry_status status, const char *doing) {
    if (status == FERRY_OK) return 0;
    const char *said = ferry_last_error();
    return lm_fail("%s: %s: %s", doing, ferry_status_name(status), *said ? said : ferry_status_text(status));
}

const char *lm_error(void) { return sentence; }
