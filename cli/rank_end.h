/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank of `ferry run` and of `ferry trace` ends. */
#ifndef FERRY_CLI_RANK_END_H
#define FERRY_CLI_RANK_END_H

#include "cli/device.h"

/* Says what failed while `doing`, if anything did, and lets go of all. Returns the rank's exit code. */
int cli_rank_end(int rank, ferry_status status, const char *doing, ferry_context *context, ferry_layer *layer,
                 ferry_comm *comm, cli_device *device);

#endif
