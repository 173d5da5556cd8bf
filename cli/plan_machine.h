/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a machine is: from a description in data/machines, or measured on this one. */
#ifndef FERRY_CLI_PLAN_MACHINE_H
#define FERRY_CLI_PLAN_MACHINE_H

#include <stdint.h>

/* A rate of one rank's device. The best that was measured or, where nothing was, the maker's peak. */
typedef struct machine_rate {
    double per_s;
    int measured;
} machine_rate;

typedef struct machine {
    char name[128];
    int64_t processors;   /* that multiply: multiprocessors of a GPU, cores of a CPU */
    int is_this;          /* a CPU that all ranks share: its rates are divided among them */
    machine_rate product; /* BF16 operations */
    machine_rate copy;    /* bytes read plus bytes written */
    machine_rate link;    /* bytes from or to all other ranks, in one direction */
} machine;

/* "this", the name of a file in data/machines without ".json", or a path of such a file. 0, or the exit code after a
 * message. Measuring takes about a second. */
int machine_find(const char *name, int ranks, machine *m);

#endif
