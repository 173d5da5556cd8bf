/* SPDX-License-Identifier: Apache-2.0 */
/* By the layer's own plan and what the system says is available, for `ferry bench`, `plan`, `trace` and `tune`. */
#include "cli/memory.h"

#include "cli/check/usage.h"
#include "cli/message.h"

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
