/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command asks of MPI. The module that does it is a shared object of its own, built where MPI is found and
 * loaded by a process that an MPI launcher has started: so the command itself needs no MPI to start.
 */
#ifndef FERRY_CLI_MPI_MODULE_H
#define FERRY_CLI_MPI_MODULE_H

#include <stddef.h>

enum { CLI_MPI_VERSION = 1, CLI_MPI_WHY = 256 };

typedef struct cli_mpi_place {
    int node, nodes;                 /* in the order of their first ranks */
    int rank, ranks;                 /* of the node */
    int machine_rank, machine_ranks; /* of this machine, which may have several nodes */
} cli_mpi_place;

typedef struct cli_mpi_module {
    int version; /* CLI_MPI_VERSION */
    /* Collective over all processes. Starts MPI and finds this process' place. nodes: 0, as many as there are machines;
     * otherwise blocks of consecutive ranks, each on one machine. 0, or -1 with a sentence in `why`. */
    int (*start)(int nodes, cli_mpi_place *place, char why[CLI_MPI_WHY]);
    /* An all-gather within this node, or (across) of the ranks at this place of all nodes. `mine` may lie at its place
     * in `all`. 0, or -1 with a sentence. */
    int (*gather)(int across, const void *mine, void *all, size_t bytes, double timeout_s, char why[CLI_MPI_WHY]);
    /* Ends MPI; with a code other than 0 every process of the job. */
    void (*end)(int code);
    /* The version of the library that was found. */
    void (*library)(char *to, size_t room);
} cli_mpi_module;

/* The one symbol of the module, a cli_mpi_module. */
#define CLI_MPI_SYMBOL "ferry_mpi_module"

#endif
