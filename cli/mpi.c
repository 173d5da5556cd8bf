/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the MPI module beside the program, and makes bootstraps of its all-gathers. */
#include "cli/mpi.h"

#include "cli/message.h"
#include "core/status.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "ferry_mpi.so"

/* What Open MPI, MPICH and its kin, and PMIx launchers set. */
static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};

/* One per group: the `user` of its bootstrap. */
typedef struct group {
    const cli_mpi_module *module;
    int across;
    double timeout_s;
} group;

static const cli_mpi_module *started;
static group groups[CLI_BOOTSTRAPS];

int cli_mpi_started(void) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        if (getenv(variables[i])) return 1;
    }
    return 0;
}

/* Where the module lies, seen from the folder of this program: a build, an installation. */
static int find_module(char *path, size_t room) {
    static const char *const places[] = {".", FERRY_MODULE_DIR};
    char self[3072];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return 0;
    self[length] = 0;
    *strrchr(self, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int used = snprintf(path, room, "%s/%s/" MODULE, self, places[i]);
        if (used < (int)room && access(path, R_OK) == 0) return 1;
    }
    return 0;
}

static const cli_mpi_module *load(char *why, size_t room) {
    char path[4096];
    if (!find_module(path, sizeof path)) {
        snprintf(why, room, "not in this build (it wants mpi.h: libopenmpi-dev or libmpich-dev)");
        return NULL;
    }
    /* Plugins of MPI itself look for its symbols among the global ones. */
    void *loaded = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const cli_mpi_module *module = loaded ? dlsym(loaded, CLI_MPI_SYMBOL) : NULL;
    if (module && module->version == CLI_MPI_VERSION) return module;
    const char *said = module ? NULL : dlerror();
    snprintf(why, room, "%s does not load: %s", path, said ? said : "it belongs to another version");
    return NULL;
}

int cli_mpi_find(char *to, size_t room) {
    const cli_mpi_module *module = load(to, room);
    if (module) module->library(to, room);
    return module != NULL;
}

static int gather(void *user, const void *mine, void *all, size_t bytes) {
    const group *g = user;
    char why[CLI_MPI_WHY] = "";
    if (g->module->gather(g->across, mine, all, bytes, g->timeout_s, why) == 0) return FERRY_OK;
    return fy_fail(FERRY_E_PEER, "%s", why);
}

int cli_mpi_start(int nodes, double timeout_s, cli_mpi_place *place, ferry_bootstrap bootstrap[CLI_BOOTSTRAPS]) {
    char why[4352];
    const cli_mpi_module *module = load(why, sizeof why);
    if (!module) return cli_fail("an MPI launcher started this process, but there is no MPI here: %s", why);
    started = module;
    if (module->start(nodes, place, why)) return cli_fail("%s", why);
    for (int g = 0; g < CLI_BOOTSTRAPS; g++) {
        int across = g == CLI_ACROSS;
        groups[g] = (group){.module = module, .across = across, .timeout_s = timeout_s};
        bootstrap[g] = (ferry_bootstrap){.rank = across ? place->node : place->rank,
                                         .nranks = across ? place->nodes : place->ranks,
                                         .allgather = gather,
                                         .user = &groups[g]};
    }
    return CLI_OK;
}

int cli_mpi_end(int code) {
    if (started) started->end(code);
    started = NULL;
    return code;
}
