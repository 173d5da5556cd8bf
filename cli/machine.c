/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of the system (affinity, /proc/cpuinfo, /dev/shm) and of the library's tables, for `ferry info`, for reports
 * and for numbers of workers. Nothing is kept between calls.
 */
#include "cli/machine.h"

#include "core/layer.h"
#include "cpu/product.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

int machine_processors(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 0 ? count : 1;
}

/* The value of the first line of /proc/cpuinfo that starts with `key`, to be freed; NULL when there is none. */
static char *cpuinfo(const char *key) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *line = NULL, *value = NULL;
    size_t room = 0;
    while (file && !value && getline(&line, &room, file) > 0) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = '\0';
        value = strdup(colon);
    }
    free(line);
    if (file) fclose(file);
    return value;
}

void machine_processor_name(char *to, size_t room) {
    char *name = cpuinfo("model name");
    snprintf(to, room, "%s", name ? name : "unknown");
    free(name);
}

int machine_has_feature(const char *name) {
    char *flags = cpuinfo("flags"), *rest = flags;
    int found = 0;
    for (char *word = strsep(&rest, " "); word && !found; word = strsep(&rest, " ")) found = strcmp(word, name) == 0;
    free(flags);
    return found;
}

const char *machine_isa_name(ferry_isa isa) {
    const fy_kernels *kernels;
    return fy_kernels_select(isa, &kernels) == FERRY_OK ? kernels->name : NULL;
}

int64_t machine_shm_free(void) {
    struct statvfs info;
    return statvfs("/dev/shm", &info) == 0 ? (int64_t)(info.f_bavail * info.f_frsize) : -1;
}

int machine_built_with_cuda(void) { return fy_backend_of(FERRY_CUDA) != NULL; }
