/* SPDX-License-Identifier: Apache-2.0 */
/* Knobs of one backend alone: on the other they would change nothing, and whoever gives one believes that they do. */
#include "cli/knobs.h"

#include "cli/message.h"

int knobs_check_backend(const layer_knobs *knobs, int64_t isa, int64_t backend) {
    const struct {
        const char *option;
        int64_t value, backend;
    } of_one[] = {{"pull-warps", knobs->pull_warps, FERRY_CUDA},    {"fan-out", knobs->fan_out, FERRY_CUDA},
                  {"comm-sms", knobs->comm_sms, FERRY_CUDA},        {"sm-margin", knobs->sm_margin, FERRY_CUDA},
                  {"comm-workers", knobs->comm_workers, FERRY_CPU}, {"isa", isa, FERRY_CPU}};
    for (size_t i = 0; i < sizeof of_one / sizeof *of_one; i++)
        if (of_one[i].value && of_one[i].backend != backend)
            return cli_usage("--%s is for %s", of_one[i].option,
                             of_one[i].backend == FERRY_CUDA ? "GPUs: --backend cuda" : "CPUs: --backend cpu");
    return CLI_OK;
}
