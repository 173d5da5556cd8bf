/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From options to a layer's configuration and its numbers of workers, for every command that makes or plans a layer;
 * and the words that options with a choice accept.
 */
#include "cli/knobs.h"

#include "cli/machine.h"
#include "cli/tune.h"
#include "rules/ring.h"

const cli_word knob_contexts[] = {{"saved", KNOB_CONTEXT_SAVED}, {"recompute", 0}, {NULL, 0}};
const cli_word knob_isas[] = {
    {"portable", FERRY_ISA_PORTABLE}, {"avx2", FERRY_ISA_AVX2}, {"avx512", FERRY_ISA_AVX512}, {NULL, 0}};
const cli_word knob_backends[] = {{"cpu", FERRY_CPU}, {"cuda", FERRY_CUDA}, {NULL, 0}};
const cli_word knob_fan_outs[] = {{"once", 1}, {"each", 2}, {NULL, 0}};
const cli_word knob_grad_dtypes[] = {{"f32", 0}, {"bf16", 1}, {NULL, 0}};

void knobs_configure(const layer_knobs *knobs, int64_t tokens, ferry_layer_config *config) {
    config->minibatch_rows = knobs->minibatch;
    config->ring_rows = knobs->ring;
    config->context_rows = knobs->context;
    config->pull_warps = (int)knobs->pull_warps;
    config->fan_out = (int)knobs->fan_out;
    config->comm_sms = (int)knobs->comm_sms;
    config->sm_margin = (int)knobs->sm_margin;
    config->tune_file = knobs->tune_file;
    tune_file_remark(knobs->tune_file);
    if (knobs->context == KNOB_CONTEXT_RULE) config->context_rows = -1;
    if (knobs->context == KNOB_CONTEXT_SAVED) {
        /* Enough wherever ids send the slots: all to one rank, each expert's segment padded to a block. */
        int64_t slots = tokens * config->slots, segments = slots < config->experts ? slots : config->experts;
        config->context_rows = slots + (FY_BLOCK_ROWS - 1) * segments;
    }
}

int knobs_comm_workers(const layer_knobs *knobs) { return knobs->comm_workers ? (int)knobs->comm_workers : 1; }

int knobs_compute_workers(const layer_knobs *knobs, int ranks) {
    int share = machine_processors() / ranks;
    return knobs->compute_workers ? (int)knobs->compute_workers : share > 1 ? share : 1;
}

void knobs_choose_workers(const layer_knobs *knobs, int64_t backend, int ranks, int *comm_workers,
                          int *compute_workers) {
    *comm_workers = backend == FERRY_CUDA ? 0 : knobs_comm_workers(knobs);
    *compute_workers = backend == FERRY_CUDA ? (int)knobs->compute_workers : knobs_compute_workers(knobs, ranks);
}
