/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the files that a training leaves can be written, and what they would replace: known before the work. */
#include "cli/message.h"
#include "cli/same_file.h"
#include "cli/train.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int check_folder(const char *path) {
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return cli_fail("a file's name has more than %d bytes", (int)sizeof folder - 1);
    char *slash = strrchr(folder, '/');
    if (slash == folder) slash++;
    if (slash) *slash = 0;
    const char *where = slash ? folder : ".";
    return access(where, W_OK | X_OK) == 0 ? 0 : cli_fail("cannot write to %s: %s", where, strerror(errno));
}

static int is_routing(const safetensors_file *file) {
    return safetensors_find(file, "ids") && safetensors_find(file, "weights");
}

/* What is there may be replaced when it is of the same kind; an empty file is nothing yet. */
static int check_old(const char *option, const char *path, int (*is_kind)(const safetensors_file *), const char *kind) {
    char error[SAFETENSORS_ERROR_BYTES];
    safetensors_file *file = NULL;
    struct stat info;
    if (stat(path, &info) != 0) return 0;
    if (!S_ISREG(info.st_mode)) return cli_fail("--%s: %s is there and is no regular file", option, path);
    if (info.st_size == 0) return 0;
    int good = safetensors_open(path, &file, error) == 0 && is_kind(file);
    if (file) safetensors_close(file);
    return good ? 0 : cli_fail("--%s: %s is there and is no %s; name another file", option, path, kind);
}

int train_places_check(const train_options *o, const char *text_path) {
    const char *save = o->save, *record = o->record_routing;
    int code = 0;
    if (save && cli_same_file(save, text_path)) return cli_usage("--save: %s is the text to learn", save);
    if (record && cli_same_file(record, text_path))
        return cli_usage("--record-routing: %s is the text to learn", record);
    if (save && record && cli_same_file(save, record))
        return cli_usage("--save and --record-routing are both %s", save);
    if (save) code = check_folder(save);
    if (save && !code) code = check_old("save", save, train_checkpoint_is, "checkpoint of this program");
    if (record && !code) code = check_folder(record);
    if (record && !code) code = check_old("record-routing", record, is_routing, "routing file");
    return code;
}
