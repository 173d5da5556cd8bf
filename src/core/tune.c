/* SPDX-License-Identifier: Apache-2.0 */
/* Which tune file counts, what it says of a layer, and rank 0's entry for all ranks (layer.c). */
#include "core/tune.h"

#include "core/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int fy_tune_path(const char *given, char *path, size_t room) {
    const char *file = given ? given : getenv("FERRY_TUNE_FILE"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = 0;
    if (file)
        n = snprintf(path, room, "%s", file);
    else if (cache && *cache)
        n = snprintf(path, room, "%s/ferry/tune", cache);
    else if (home && *home)
        n = snprintf(path, room, "%s/.cache/ferry/tune", home);
    return n > 0 && (size_t)n < room;
}

/* A plain file and nothing else: another kind could block, or never end. */
FILE *fy_tune_open(const char *path) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), why = EINVAL;
    if (fd < 0) return NULL;
    FILE *file = NULL;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        file = info.st_size <= FY_TUNE_BYTES ? fdopen(fd, "r") : NULL;
        why = info.st_size <= FY_TUNE_BYTES ? errno : EFBIG;
    }
    if (!file) close(fd);
    errno = why;
    return file;
}

/* The next line, its newline included; one that no entry is as long as comes back empty. 0: the end. */
static int next_line(FILE *file, char line[FY_TUNE_LINE]) {
    size_t n = 0;
    int c;
    while ((c = getc(file)) != EOF) {
        if (n < FY_TUNE_LINE - 1) line[n] = c ? (char)c : '?';
        n++;
        if (c == '\n') break;
    }
    line[n < FY_TUNE_LINE ? n : 0] = '\0';
    return n > 0;
}

int fy_tune_find(const char *path, fy_tune_entry *entry) {
    char line[FY_TUNE_LINE];
    fy_tune_entry here, found;
    int any = 0;
    FILE *file = fy_tune_open(path);
    while (file && next_line(file, line)) {
        if (!fy_tune_parse(line, &here) || !fy_tune_same_key(&here, entry)) continue;
        found = here;
        any = 1;
    }
    if (file) fclose(file);
    if (any) *entry = found;
    return any;
}

int fy_tune_find_for_layer(const char *path, fy_tune_entry *entry) {
    entry->backward = 1;
    if (fy_tune_find(path, entry)) return 1;
    entry->backward = 0;
    return fy_tune_find(path, entry);
}

/* A value that the caller has left to the rule and the entry has. */
static int fills(int *to, int64_t value, int flag) {
    if (*to != 0 || value == 0) return 0;
    *to = (int)value;
    return flag;
}

int fy_tune_apply(const fy_tune_entry *e, ferry_layer_config *config, int *comm_workers) {
    int tuned = 0;
    if (config->minibatch_rows == 0 && e->minibatch_rows > 0) {
        config->minibatch_rows = e->minibatch_rows;
        tuned |= FERRY_TUNED_MINIBATCH_ROWS;
    }
    if (e->backend == FERRY_CUDA) {
        tuned |= fills(&config->pull_warps, e->pull_warps, FERRY_TUNED_PULL_WARPS);
        tuned |= fills(&config->fan_out, e->fan_out, FERRY_TUNED_FAN_OUT);
        if (e->comm_sms < e->workers) tuned |= fills(&config->comm_sms, e->comm_sms, FERRY_TUNED_COMM_SMS);
    } else if (comm_workers && e->comm_workers > 0 && e->comm_workers < e->workers) {
        *comm_workers = (int)e->comm_workers;
        tuned |= FERRY_TUNED_COMM_WORKERS;
    }
    return tuned;
}

fy_tune_entry fy_tune_key(const ferry_layer_config *c, ferry_backend backend, const char *machine, int workers,
                          int ranks) {
    fy_tune_entry key;
    memset(&key, 0, sizeof key);
    fy_tune_machine(machine, key.machine);
    key.backend = backend;
    key.workers = workers;
    key.ranks = ranks;
    key.hidden = c->hidden;
    key.intermediate = c->intermediate;
    key.shared = c->shared;
    key.experts = c->experts;
    key.slots = c->slots;
    key.max_tokens = c->max_tokens;
    return key;
}

void fy_processor_name(char *to, size_t room) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(to, room, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, "model name", 10) != 0) continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(to, room, "%s", value);
        break;
    }
    if (file) fclose(file);
}

ferry_status fy_tune_layer(ferry_comm *comm, ferry_layer_config *config, int *comm_workers, int *tuned) {
    ferry_backend backend = comm->config.backend;
    int threads = comm->config.comm_workers + comm->config.compute_workers;
    int workers = backend == FERRY_CPU ? threads : comm->config.compute_workers - config->sm_margin;
    char path[4096], machine[256];
    fy_tune_entry mine, all[FY_MAX_RANKS];
    memset(&mine, 0, sizeof mine);
    if (comm->rank == 0 && fy_tune_path(config->tune_file, path, sizeof path)) {
        fy_backend_of(backend)->machine(comm, machine, sizeof machine);
        mine = fy_tune_key(config, backend, machine, workers, comm->nranks);
        if (!fy_tune_find_for_layer(path, &mine)) mine.workers = 0;
    }
    FY_TRY(fy_allgather(comm, &mine, all, sizeof mine));
    /* A rank may have fewer workers than rank 0; an entry is not to take more than it has. */
    if (workers < all[0].workers) all[0].workers = workers;
    *tuned = all[0].workers > 0 ? fy_tune_apply(&all[0], config, comm->workers_by_rule ? comm_workers : NULL) : 0;
    return FERRY_OK;
}
