/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds of the machine. */
#ifndef FERRY_CLI_CHECK_USAGE_H
#define FERRY_CLI_CHECK_USAGE_H

#include <stdint.h>

typedef struct check_usage {
    int64_t resident;     /* bytes */
    int64_t heap;         /* bytes that malloc has given and not got back */
    int64_t files;        /* open descriptors */
    int64_t shared_names; /* entries of /dev/shm, of all processes of the machine */
    int64_t threads;
} check_usage;

check_usage check_usage_now(void);
/* Lets the peak of resident memory start anew; 0 where the system does not allow that. */
int check_usage_reset_peak(void);
int64_t check_usage_peak(void);
/* Bytes that could be had without swapping. */
int64_t check_usage_available(void);

#endif
