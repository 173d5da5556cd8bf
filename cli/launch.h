/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one function as R ranks: threads of this process, or child processes that meet in shared memory. Several groups
 * of R ranks stand for nodes. */
#ifndef FERRY_CLI_LAUNCH_H
#define FERRY_CLI_LAUNCH_H

#include "ferry/ferry.h"

#include <stddef.h>

typedef struct cli_launch_options {
    int nranks;       /* of a node */
    int nodes;        /* groups of nranks ranks; 0: 1 */
    int processes;    /* 0: threads; 1: forked children */
    double timeout_s; /* for a rank to appear, and for ranks to end after one has failed; <= 0: 600 */
} cli_launch_options;

/* Whom a rank can meet: the ranks of its node; and the ranks at its place of all nodes, in node order, which are one
 * (itself, with nothing to gather by) where there is one node. */
enum { CLI_NODE, CLI_ACROSS, CLI_BOOTSTRAPS };

/* The body of a rank; its return value is the rank's exit code, 0 for success. bootstrap[CLI_BOOTSTRAPS] is valid until
 * it returns. `rank` counts through all nodes. With processes it runs in a child: what it writes is lost unless the
 * memory is cli_shared_alloc's. */
typedef int cli_rank_main(void *user, const ferry_bootstrap *bootstrap, int rank);

/*
 * Returns when all ranks have ended: 0, or the first non-zero exit code (1 for a child that a signal ended, which is
 * said on stderr). Processes: call it before this process has started any thread. Nobody is killed for another's
 * failure, since the library ends their waits; children that are still there `timeout_s` after a failure are, and a few
 * seconds after it where not all have met, since those wait for the one that failed. Children die with the parent.
 */
int cli_launch(const cli_launch_options *options, cli_rank_main *rank_main, void *user);

/* Zeroed memory that children forked later share with this process. NULL when there is none to be had. */
void *cli_shared_alloc(size_t bytes);
void cli_shared_free(void *memory, size_t bytes);

#endif
