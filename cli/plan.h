/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry plan`: what was asked for, and the report. */
#ifndef FERRY_CLI_PLAN_H
#define FERRY_CLI_PLAN_H

#include "cli/plan_floor.h"
#include "cli/knobs.h"

typedef struct plan_options {
    const char *shape, *input, *routing, *machine;
    int64_t ranks; /* 0: not given */
    double skew, scale;
    int64_t seed;
    layer_knobs knobs;
    int64_t grad_bf16, backend, json;
} plan_options;

typedef struct plan_job {
    const plan_options *options;
    const char *title; /* the shape's name, or the file */
    ferry_layer_config config;
    plan_input input;
    int given, tuned; /* FERRY_TUNED_*: by an option; by the tune file. The rest is by rule */
    plan_counts counts;
    machine machine;
} plan_job;

/* Prints the summary, or the object of --json. 0, or the exit code after a message. */
int plan_report(const plan_job *job);

#endif
