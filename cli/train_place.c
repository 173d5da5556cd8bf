/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the files that a training leaves can be written, and what they would replace: known before the work. */
#include "cli/message.h"
#include "cli/same_file.h"
#include "cli/train.h"

#include <sys/stat.h>

static int is_routing(const safetensors_file *file) {
    return safetensors_find(file, "ids") && safetensors_find(file, "weights");
}

/* What is there may be replaced when it is of the same kind; an empty file is nothing yet. */
static int check_place(const char *option, const char *path, int (*is_kind)(const safetensors_file *),
                       const char *kind) {
    char error[SAFETENSORS_ERROR_BYTES];
    safetensors_file *file = NULL;
    struct stat info;
    if (safetensors_check_place(path, error)) return cli_fail("--%s: %s", option, error);
    if (stat(path, &info) != 0 || info.st_size == 0) return 0;
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
    if (save) code = check_place("save", save, train_checkpoint_is, "checkpoint of this program");
    if (record && !code) code = check_place("record-routing", record, is_routing, "routing file");
    return code;
}
