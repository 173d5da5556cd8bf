/* SPDX-License-Identifier: Apache-2.0 */
/* By the layer's own plan and what the system says is available, for `ferry bench`, `plan`, `trace` and `tune`. */
#include "cli/memory.h"

#include "cli/check/usage.h"
#include "cli/message.h"

static double weights_of(const ferry_layer_config *c) {
    return 3.0 * (double)c->hidden * (double)c->intermediate * (double)c->experts;
}

double memory_of_inputs(const ferry_layer_config *config, int64_t tokens, int dout) {
    double rows = (double)tokens * (double)config->hidden, slots = (double)tokens * (double)config->slots;
    return 2 * ((dout ? 2 : 1) * rows + weights_of(config)) + 8 * slots;
}

double memory_of_results(const ferry_layer_config *config, int64_t tokens, int backward, int gradient_bytes) {
    double rows = (double)tokens * (double)config->hidden, slots = (double)tokens * (double)config->slots;
    return 2 * rows + (backward ? 2 * rows + 4 * slots + gradient_bytes * weights_of(config) : 0);
}

double memory_of_layer(const ferry_layer_config *config, int nranks, int comm_workers, int compute_workers,
                       int backward) {
    double bytes = 0;
    for (int rank = 0; rank < nranks; rank++) {
        ferry_plan plan = {.size = sizeof plan};
        if (ferry_layer_plan(config, FERRY_CPU, rank, nranks, comm_workers, compute_workers, &plan))
            continue; /* said by the rank's own call */
        bytes += (double)plan.layer_bytes + (backward ? (double)plan.context_bytes : 0);
    }
    return bytes;
}

int memory_check(const char *what, double bytes, const char *instead) {
    double available = (double)check_usage_available();
    if (available < 0 || bytes <= available) return CLI_OK;
    return cli_fail("%s need %.1f GB of memory, %.1f GB are available; give %s", what, 1e-9 * bytes, 1e-9 * available,
                    instead);
}

int memory_check_layers(const ferry_layer_config *config, int nranks, int comm_workers, int compute_workers, int layers,
                        int backward, double beside, const char *instead) {
    ferry_plan plan = {.size = sizeof plan};
    ferry_status status = ferry_layer_plan(config, FERRY_CPU, 0, nranks, comm_workers, compute_workers, &plan);
    if (status) return cli_fail_status(status, "planning the layer");
    double each = memory_of_layer(config, nranks, comm_workers, compute_workers, backward);
    return memory_check(layers > 1 ? "the layers and their tensors" : "the layer and its tensors",
                        layers * each + beside, instead);
}
