/* SPDX-License-Identifier: Apache-2.0 */
/* What a call that failed gave and said. */
#ifndef FERRY_TESTS_SAID_H
#define FERRY_TESTS_SAID_H

#include "ferry/ferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

static inline void assert_said(ferry_status got, ferry_status wanted, const char *text) {
    const char *said = ferry_last_error();
    if (got == wanted && strstr(said, text)) return;
    fail_msg("%s, \"%s\"; expected %s, \"%s\"", ferry_status_name(got), said, ferry_status_name(wanted), text);
}

#endif
