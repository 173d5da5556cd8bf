/* SPDX-License-Identifier: Apache-2.0 */
/* How the language model says a failure: the function that decides it calls lm_fail once; callers forward the -1. */
#ifndef FERRY_LM_ERROR_H
#define FERRY_LM_ERROR_H

#include "ferry/ferry.h"

/* Stores the sentence for lm_error() in this thread and returns -1. */
int lm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* 0 for FERRY_OK; otherwise stores what the library said and returns -1. */
int lm_fail_status(ferry_status status, const char *doing);
/* The sentence of the last failure in this thread. */
const char *lm_error(void);

#define LM_TRY(call)                                                                                                   \
    do {                                                                                                               \
        if ((call) != 0) return -1;                                                                                    \
    } while (0)

#endif
