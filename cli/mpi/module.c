/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI of `ferry train`: places, all-gathers with a deadline, and the end of the job. */
#include "cli/mpi/module.h"

#include "cli/clock.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const cli_mpi_module ferry_mpi_module;

static MPI_Comm groups[2]; /* this node's ranks; the ranks at this place of all nodes */
/* Calls of MPI come one at a time, from whatever thread; waiting is done without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int say(char why[CLI_MPI_WHY], const char *doing, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    snprintf(why, CLI_MPI_WHY, "MPI: %s: %.180s", doing, text);
    return -1;
}

#define TRY(call, doing)                                                                                               \
    do {                                                                                                               \
        int tried = (call);                                                                                            \
        if (tried != MPI_SUCCESS) return say(why, doing, tried);                                                       \
    } while (0)

/* machine[rank]: the first rank on the same machine as `rank`. */
static int find_machines(int rank, int *machine, char why[CLI_MPI_WHY]) {
    MPI_Comm here;
    int first = rank;
    TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here), "finding the machine");
    TRY(MPI_Bcast(&first, 1, MPI_INT, 0, here), "finding the machine");
    MPI_Comm_free(&here);
    TRY(MPI_Allgather(&first, 1, MPI_INT, machine, 1, MPI_INT, MPI_COMM_WORLD), "finding all machines");
    return 0;
}

/* node[rank] for all ranks, from the machines or, when there are to be `nodes`, from blocks of ranks. */
static int number_nodes(int nodes, int size, const int *machine, int *node, char why[CLI_MPI_WHY]) {
    if (nodes > 0 && size % nodes) {
        snprintf(why, CLI_MPI_WHY, "MPI has %d processes, which cannot be split into %d nodes of equal size", size,
                 nodes);
        return -1;
    }
    int found = 0, per_node = nodes > 0 ? size / nodes : 0;
    for (int r = 0; r < size; r++) {
        node[r] = per_node ? r / per_node : machine[r] == r ? found++ : node[machine[r]];
        if (per_node && machine[r] != machine[r - r % per_node]) {
            snprintf(why, CLI_MPI_WHY, "with %d nodes, processes %d and %d belong to one, but are on two machines",
                     nodes, r - r % per_node, r);
            return -1;
        }
    }
    return 0;
}

/* The place of `rank` when every node has as many ranks as the first. */
static int find_place(int rank, int size, const int *machine, const int *node, cli_mpi_place *place,
                      char why[CLI_MPI_WHY]) {
    cli_mpi_place p = {.node = node[rank]};
    for (int r = 0; r < size; r++) {
        if (node[r] >= p.nodes) p.nodes = node[r] + 1;
        if (node[r] == 0) p.ranks++;
        if (node[r] == p.node && r < rank) p.rank++;
        if (machine[r] == machine[rank]) p.machine_ranks++;
        if (machine[r] == machine[rank] && r < rank) p.machine_rank++;
    }
    for (int n = 0; n < p.nodes; n++) {
        int ranks = 0;
        for (int r = 0; r < size; r++) ranks += node[r] == n;
        if (ranks == p.ranks) continue;
        snprintf(why, CLI_MPI_WHY, "MPI started %d processes on node 0 and %d on node %d; expected equally many",
                 p.ranks, ranks, n);
        return -1;
    }
    *place = p;
    return 0;
}

static int find(int nodes, cli_mpi_place *place, char why[CLI_MPI_WHY]) {
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *machine = calloc(2 * (size_t)size, sizeof *machine), *node = machine + size;
    if (!machine) {
        snprintf(why, CLI_MPI_WHY, "no memory for the places of %d processes", size);
        return -1;
    }
    int bad = find_machines(rank, machine, why) || number_nodes(nodes, size, machine, node, why) ||
              find_place(rank, size, machine, node, place, why);
    free(machine);
    if (bad) return -1;
    TRY(MPI_Comm_split(MPI_COMM_WORLD, place->node, rank, &groups[0]), "grouping the ranks of a node");
    TRY(MPI_Comm_split(MPI_COMM_WORLD, place->rank, rank, &groups[1]), "grouping the ranks across nodes");
    for (int g = 0; g < 2; g++) MPI_Comm_set_errhandler(groups[g], MPI_ERRORS_RETURN);
    return 0;
}

static int start(int nodes, cli_mpi_place *place, char why[CLI_MPI_WHY]) {
    int given;
    TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "starting");
    if (given < MPI_THREAD_SERIALIZED) {
        snprintf(why, CLI_MPI_WHY, "MPI: this library lets only one thread call it");
        return -1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return find(nodes, place, why);
}

static int gather(int across, const void *mine, void *all, size_t bytes, double timeout_s, char why[CLI_MPI_WHY]) {
    MPI_Comm group = groups[across];
    MPI_Request request;
    int rank, done = 0;
    if (bytes > INT_MAX) {
        snprintf(why, CLI_MPI_WHY, "MPI: %zu bytes to gather, at most %d at a time", bytes, INT_MAX);
        return -1;
    }
    pthread_mutex_lock(&lock);
    MPI_Comm_rank(group, &rank);
    if (bytes > 0) memmove((char *)all + (size_t)rank * bytes, mine, bytes);
    int error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)bytes, MPI_BYTE, group, &request);
    pthread_mutex_unlock(&lock);
    TRY(error, "gathering");
    /* Peers are milliseconds away at most times, and processors may be short: polling sleeps a little. */
    for (double deadline = cli_now_s() + timeout_s; !done;) {
        pthread_mutex_lock(&lock);
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&lock);
        TRY(error, "gathering");
        if (!done && cli_now_s() > deadline) {
            snprintf(why, CLI_MPI_WHY, "MPI: waited %g s in an all-gather %s; a process has died or hangs", timeout_s,
                     across ? "across nodes" : "of this node");
            return -1;
        }
        if (!done) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return 0;
}

static void end(int code) {
    fflush(NULL);
    if (code) MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
}

static void library(char *to, size_t room) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    snprintf(to, room, "%s", text);
}

const cli_mpi_module ferry_mpi_module = {
    .version = CLI_MPI_VERSION, .start = start, .gather = gather, .end = end, .library = library};
