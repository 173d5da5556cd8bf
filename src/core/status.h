/* SPDX-License-Identifier: Apache-2.0 */
/* How a failure is said: the function that decides an error calls fy_fail once; its callers only forward the code. */
#ifndef FERRY_CORE_STATUS_H
#define FERRY_CORE_STATUS_H

#include "ferry/ferry.h"

/* Stores the sentence for ferry_last_error() in this thread and returns `status`. */
ferry_status fy_fail(ferry_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Forwards a failure. */
#define FY_TRY(call)                                                                                                   \
    do {                                                                                                               \
        ferry_status fy_try_status = (call);                                                                           \
        if (fy_try_status != FERRY_OK) return fy_try_status;                                                           \
    } while (0)

#endif
