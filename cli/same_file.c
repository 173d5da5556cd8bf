/* SPDX-License-Identifier: Apache-2.0 */
/* Paths are compared by what the system finds there: a device and an inode. */
#include "cli/same_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int same_inode(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* As stat, for the folder that has the path's last name. */
static int stat_folder(const char *path, struct stat *info) {
    size_t length = (size_t)(name_of(path) - path);
    char *folder = length ? strndup(path, length) : strdup(".");
    int code = folder ? stat(folder, info) : -1;
    free(folder);
    return code;
}

int cli_same_file(const char *a, const char *b) {
    struct stat of_a, of_b;
    int has_a = stat(a, &of_a) == 0, has_b = stat(b, &of_b) == 0;
    if (has_a && has_b) return S_ISREG(of_a.st_mode) && same_inode(&of_a, &of_b);
    if (has_a || has_b || strcmp(name_of(a), name_of(b)) != 0) return 0;
    return stat_folder(a, &of_a) == 0 && stat_folder(b, &of_b) == 0 && same_inode(&of_a, &of_b);
}
