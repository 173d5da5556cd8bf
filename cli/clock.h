/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of the monotonic clock. */
#ifndef FERRY_CLI_CLOCK_H
#define FERRY_CLI_CLOCK_H

#include "comm/clock.h"

static inline double cli_now_s(void) { return 1e-9 * (double)fy_now_ns(); }

#endif
