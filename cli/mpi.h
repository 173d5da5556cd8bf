/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that an MPI launcher started: one process each. MPI itself is in a module, see cli/mpi/module.h. */
#ifndef FERRY_CLI_MPI_H
#define FERRY_CLI_MPI_H

#include "cli/launch.h"
#include "cli/mpi/module.h"

/* Whether an MPI launcher started this process. */
int cli_mpi_started(void);

/* The MPI library that the module uses in `to`; 0 when there is none, with the reason in `to`. */
int cli_mpi_find(char *to, size_t room);

/*
 * Collective over the processes of the job; once. Starts MPI; see cli_mpi_module.start. timeout_s: for other processes
 * in an all-gather. The bootstraps are valid until cli_mpi_end. 0, or the exit code after a message, and then
 * cli_mpi_end must be called too.
 */
int cli_mpi_start(int nodes, double timeout_s, cli_mpi_place *place, ferry_bootstrap bootstrap[CLI_BOOTSTRAPS]);
/* Returns `code`; when that is not 0, it ends every process of the job instead, where MPI was started. */
int cli_mpi_end(int code);

#endif
