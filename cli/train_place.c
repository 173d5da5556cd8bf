/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the files that a training leaves can be written, and what they would replace: known before the work. */
#include "cli/message.h"
#include "cli/place.h"
#include "cli/same_file.h"
#include "cli/train.h"

static int is_routing(const safetensors_file *file) {
    return safetensors_find(file, "ids") && safetensors_find(file, "weights");
}

static const place_kind checkpoint_kind = {.name = "checkpoint of this program", .holds = train_checkpoint_is};
static const place_kind routing_kind = {.name = "routing file", .holds = is_routing};

int train_places_check(const train_options *o, const char *text_path) {
    const char *save = o->save, *record = o->record_routing;
    int code = 0;
    if (save && cli_same_file(save, text_path)) return cli_usage("--save: %s is the text to learn", save);
    if (record && cli_same_file(record, text_path))
        return cli_usage("--record-routing: %s is the text to learn", record);
    if (save && record && cli_same_file(save, record))
        return cli_usage("--save and --record-routing are both %s", save);
    if (save) code = place_check("--save", save, &checkpoint_kind);
    if (record && !code) code = place_check("--record-routing", record, &routing_kind);
    return code;
}
