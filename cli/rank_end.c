/* SPDX-License-Identifier: Apache-2.0 */
/* A device's own reason says more than the status of the call that met it. */
#include "cli/rank_end.h"

#include "cli/message.h"

#include <stdio.h>

int cli_rank_end(int rank, ferry_status status, const char *doing, ferry_context *context, ferry_layer *layer,
                 ferry_comm *comm, cli_device *device) {
    int code = CLI_OK;
    if (status) {
        char where[64];
        snprintf(where, sizeof where, "rank %d: %s", rank, doing);
        code = device->why[0] ? cli_fail("%s: %s", where, device->why) : cli_fail_status(status, where);
    }
    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    cli_device_close(device);
    return code;
}
