/* SPDX-License-Identifier: Apache-2.0 */
/* Read from /proc. */
#include "cli/check/usage.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* The number after `key` in a file of lines "Key:   123 kB"; -1 when it is not there. */
static int64_t read_number(const char *path, const char *key) {
    char line[256];
    long long number = -1;
    FILE *file = fopen(path, "r");
    while (file && number < 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), "%lld", &number);
    }
    if (file) fclose(file);
    return number;
}

static int64_t count_entries(const char *path) {
    int64_t count = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    if (folder) closedir(folder);
    return count;
}

check_usage check_usage_now(void) {
    return (check_usage){
        .resident = read_number("/proc/self/status", "VmRSS:") * 1024,
        .heap = (int64_t)mallinfo2().uordblks,
        .files = count_entries("/proc/self/fd"),
        .shared_names = count_entries("/dev/shm"),
        .threads = read_number("/proc/self/status", "Threads:"),
    };
}

int check_usage_reset_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return 0;
    int written = fputs("5", file) >= 0;
    return fclose(file) == 0 && written;
}

int64_t check_usage_peak(void) { return read_number("/proc/self/status", "VmHWM:") * 1024; }

int64_t check_usage_available(void) { return read_number("/proc/meminfo", "MemAvailable:") * 1024; }
