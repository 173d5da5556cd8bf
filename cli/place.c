/* SPDX-License-Identifier: Apache-2.0 */
/* What may be replaced is told by what it holds, never by its name; an empty file is nothing yet. */
#include "cli/place.h"

#include "cli/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int begins(const char *path, const char *beginning) {
    char found[128];
    size_t length = strlen(beginning), count = 0;
    FILE *file = length <= sizeof found ? fopen(path, "re") : NULL;
    if (file) {
        count = fread(found, 1, length, file);
        fclose(file);
    }
    return count == length && memcmp(found, beginning, length) == 0;
}

static int is_kind(const char *path, const place_kind *kind) {
    char error[SAFETENSORS_ERROR_BYTES];
    safetensors_file *file;
    if (kind->beginning) return begins(path, kind->beginning);
    if (safetensors_open(path, &file, error)) return 0;
    int holds = !kind->holds || kind->holds(file);
    safetensors_close(file);
    return holds;
}

int place_check(const char *what, const char *path, const place_kind *kind) {
    char error[SAFETENSORS_ERROR_BYTES];
    struct stat info;
    if (!*path) return cli_usage("%s: the name of the file is empty", what);
    if (safetensors_check_place(path, error)) return cli_fail("%s: %s", what, error);
    if (stat(path, &info) != 0) return CLI_OK;
    if (access(path, W_OK) != 0) return cli_fail("%s: %s: cannot be written: %s", what, path, strerror(errno));
    if (info.st_size == 0 || is_kind(path, kind)) return CLI_OK;
    return cli_fail("%s: %s is there and is no %s; name another file", what, path, kind->name);
}
