/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in nanoseconds, and deadlines that cannot overflow. */
#ifndef FERRY_COMM_CLOCK_H
#define FERRY_COMM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t fy_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* `seconds` from now; anything above 30 years is as good as for ever. */
static inline int64_t fy_deadline_ns(double seconds) {
    const double forever = 1e9;
    return fy_now_ns() + (int64_t)((seconds < forever ? seconds : forever) * 1e9);
}

static inline void fy_sleep_ns(int64_t ns) {
    const struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

#endif
