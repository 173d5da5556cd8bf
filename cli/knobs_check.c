/* SPDX-License-Identifier: Apache-2.0 */
/* Knobs of one backend alone: on the other they would change nothing, and whoever gives one believes that they do. */
#include "cli/knobs.h"

#include "cli/message.h"

int knobs_check_backend(const layer_knobs *knobs, int64_t isa, int64_t backend) {
    const struct {
        const char *option;
        int64_t value;
    } of_gpus[] = {{"pull-warps", knobs->pull_warps},
                   {"fan-out", knobs->fan_out},
                   {"comm-sms", knobs->comm_sms},
                   {"sm-margin", knobs->sm_margin}};
    if (backend == FERRY_CUDA) {
        if (isa == FERRY_ISA_AUTO && knobs->comm_workers == 0) return CLI_OK;
        return cli_usage("--%s is for CPUs: --backend cpu", isa == FERRY_ISA_AUTO ? "comm-workers" : "isa");
    }
    for (size_t i = 0; i < sizeof of_gpus / sizeof *of_gpus; i++)
        if (of_gpus[i].value) return cli_usage("--%s is for GPUs: --backend cuda", of_gpus[i].option);
    return CLI_OK;
}
