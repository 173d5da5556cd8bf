/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry plan`: what a layer will hold, move and compute, counted from expert ids without running it. */
#include "cli/plan.h"

#include "cli/commands.h"
#include "cli/device.h"
#include "cli/memory.h"
#include "cli/message.h"
#include "cli/options.h"
#include "cli/routing.h"
#include "cli/run.h"
#include "cli/shapes.h"
#include "core/check.h"
#include "core/tune.h"
#include "rules/place.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) .at = offsetof(plan_options, field)
static const cli_option options[] = {
    {.name = "shape", .kind = CLI_STRING, AT(shape), .group = "what", .argument = SHAPE_ARGUMENT, .help = SHAPE_HELP},
    {.name = "input",
     .kind = CLI_STRING,
     AT(input),
     .group = "what",
     .argument = "IN.safetensors",
     .help = "the extents and ids of an input of ferry run; a backward is planned when it has dout"},
    RANKS_OPTION(plan_options, "ranks (default: the length of tokens_per_rank, else 1)"),
    ROUTING_OPTIONS(plan_options),
    {.name = "scale",
     .kind = CLI_DOUBLE,
     AT(scale),
     .min = 1,
     .max = 10000,
     .argument = "F",
     .help = SHAPE_SCALE_HELP " (default 1)"},
    LAYER_KNOB_OPTIONS(plan_options, knobs),
    GRAD_DTYPE_OPTION(plan_options, "dtype of the weight gradients, for the bytes that memory moves (default bf16)"),
    {.name = "backend",
     .kind = CLI_CHOICE,
     AT(backend),
     .words = knob_backends,
     .help = "whose memory and choices are planned (default cpu); no GPU is needed"},
    {.name = "machine",
     .kind = CLI_STRING,
     AT(machine),
     .argument = "this|NAME|FILE",
     .help =
         "whose floor time: this machine, measured in a second (default on the CPU); h200 (default for GPUs), h100 or "
         "gb300 of data/machines; or a file of that form"},
    {.name = "json", .kind = CLI_FLAG, AT(json), .help = "print one JSON object"},
    {0}};

static const cli_command command = {
    .name = "plan",
    .about =
        "Says what a layer will hold, move and compute: planned memory, counters, bytes between the ranks with and "
        "without pulling a token once for all its experts of a rank (fan-out), bytes that memory moves, and the time "
        "below which a machine cannot get.\n\n"
        "Ids are drawn, unless a file gives them. Memory and counters equal what ferry run and ferry "
        "bench count for the same ids and knobs, except that a GPU pulls the first rows of a call without fan-out and "
        "counts its steps by tiles. Peaks that those measure have the communicator too, which is in no plan: on every "
        "rank of the CPU about 1 KB, up to 200 bytes for each rank and 24 for each worker. What is left to the rules "
        "is said as such, or as tuned where ferry tune has "
        "measured this layer on this machine. Floor times are of the busiest rank with one "
        "device of the machine for each rank, except for this machine, which all ranks share.",
    .options = options,
    .examples = "ferry plan --shape kimi-slice --ranks 2 --machine h200\n"
                "ferry plan --shape 1024,512,8,2,4096 --ring 1024 --context recompute\n"
                "ferry plan --backend cuda --shape qwen3-30b-a3b --ranks 2\n"
                "ferry plan --input layer.safetensors --ranks 4 --json"};

static int given_of(const layer_knobs *k) {
    return (k->minibatch ? FERRY_TUNED_MINIBATCH_ROWS : 0) | (k->pull_warps ? FERRY_TUNED_PULL_WARPS : 0) |
           (k->fan_out ? FERRY_TUNED_FAN_OUT : 0) | (k->comm_sms ? FERRY_TUNED_COMM_SMS : 0);
}

/* What a layer of this command would take from the tune file here: workers on CPUs it always gives itself. */
static void use_tuned(plan_job *job) {
    plan_input *in = &job->input;
    char path[4096], name[256];
    cli_devices devices;
    if (!fy_tune_path(job->config.tune_file, path, sizeof path)) return;
    int workers = in->comm_workers + in->compute_workers;
    if (in->backend == FERRY_CUDA) {
        if (!cli_devices_find(FERRY_CUDA, &devices)) return;
        workers = in->compute_workers - job->config.sm_margin;
        strcpy(name, devices.name);
    } else {
        fy_processor_name(name, sizeof name);
    }
    fy_tune_entry entry = fy_tune_key(&job->config, in->backend, name, workers, in->nranks);
    if (!fy_tune_find_for_layer(path, &entry)) return;
    job->tuned = fy_tune_apply(&entry, &job->config, NULL);
}

static int choose_machine(plan_job *job) {
    const plan_options *o = job->options;
    int gpu = o->backend == FERRY_CUDA;
    const char *name = o->machine ? o->machine : gpu ? "h200" : "this";
    if (gpu && strcmp(name, "this") == 0)
        return cli_usage("--machine this measures processors; give a description of a GPU with --backend cuda");
    return machine_find(name, job->input.nranks, &job->machine);
}

/* Counts and prints. */
static int plan(plan_job *job) {
    const plan_options *o = job->options;
    plan_input *in = &job->input;
    in->config = &job->config;
    in->backend = (ferry_backend)o->backend;
    knobs_choose_workers(&o->knobs, o->backend, in->nranks, &in->comm_workers, &in->compute_workers);
    knobs_configure(&o->knobs, in->first_token[in->nranks], &job->config);
    if (in->compute_workers == 0) in->compute_workers = (int)job->machine.processors;
    job->given = given_of(&o->knobs);
    use_tuned(job);
    ferry_status status = plan_count(&job->input, &job->counts);
    if (status) return cli_fail_status(status, "planning the layer");
    for (int r = 0; r < in->nranks; r++) job->counts.rank[r].plan.tuned = job->tuned;
    int code = plan_report(job);
    plan_counts_free(&job->counts);
    return code;
}

static int plan_input_file(plan_job *job) {
    const plan_options *o = job->options;
    run_options as_run = {.in = o->input, .ranks = o->ranks};
    run_problem p;
    int code = run_problem_open(&p, &as_run);
    if (!code) {
        job->title = o->input;
        job->config = run_problem_config(&p);
        job->input.nranks = p.nranks;
        job->input.first_token = p.first_token;
        job->input.ids = p.ids;
        job->input.ids_dtype = p.ids_dtype;
        job->input.has_backward = p.dout != NULL;
        code = choose_machine(job);
        if (!code) code = plan(job);
    }
    run_problem_close(&p);
    return code;
}

static int plan_routing(plan_job *job, const routing *r) {
    int64_t first_token[KNOB_MAX_RANKS + 1];
    int ranks = job->input.nranks;
    for (int i = 0; i <= ranks; i++) first_token[i] = fy_split_first(r->tokens, ranks, i);
    job->config.max_tokens = fy_split_size(r->tokens, ranks, 0);
    job->input.first_token = first_token;
    job->input.ids = r->ids;
    job->input.ids_dtype = FERRY_I32;
    job->input.has_backward = 1;
    return plan(job);
}

/* What cannot be is said before, and what takes a while is announced on a terminal. */
static int draw(const plan_job *job, routing *r) {
    const plan_options *o = job->options;
    const ferry_layer_config *c = &job->config;
    const double logit_s = 30e-9; /* one processor, about */
    int64_t tokens = c->max_tokens * job->input.nranks;
    double seconds = logit_s * (double)tokens * (double)c->experts;
    ferry_status status = fy_check_layer_config(c, job->input.nranks);
    if (status) return cli_fail_status(status, "planning the layer");
    int code = memory_check("the ids and their weights", 8.0 * (double)tokens * (double)c->slots,
                            "a larger --scale, fewer ranks or a smaller shape");
    if (code) return code;
    if (seconds >= 1 && !o->json && isatty(STDERR_FILENO))
        cli_note("drawing the ids of %" PRId64 " tokens over %" PRId64 " experts takes about %.0f s", tokens,
                 c->experts, seconds);
    return routing_draw(r, tokens, c->experts, c->slots, o->skew, (uint64_t)o->seed);
}

static int plan_shape(plan_job *job) {
    const plan_options *o = job->options;
    int ranks = job->input.nranks = o->ranks ? (int)o->ranks : 1;
    layer_shape shape;
    routing r;
    job->title = o->shape ? o->shape : SHAPE_DEFAULT;
    int code = shape_parse(job->title, ranks, &shape);
    if (code) return code;
    shape = shape_scaled(shape, o->scale);
    job->config.hidden = shape.hidden;
    job->config.intermediate = shape.intermediate;
    job->config.experts = shape.experts;
    job->config.slots = shape.slots;
    job->config.max_tokens = shape.tokens;
    code = choose_machine(job);
    if (!code) code = o->routing ? routing_read_for(&r, o->routing, job->title, &shape) : draw(job, &r);
    if (code) return code;
    code = plan_routing(job, &r);
    routing_free(&r);
    return code;
}

int ferry_cmd_plan(int argc, char **argv) {
    plan_options o = {.knobs.context = KNOB_CONTEXT_RULE, .scale = 1, .seed = 1, .grad_bf16 = 1};
    int code;
    if (!cli_parse(&command, argc, argv, &o, NULL, &code)) return code;
    code = knobs_check_backend(&o.knobs, FERRY_ISA_AUTO, o.backend);
    if (code) return code;
    if (o.input && o.routing) return cli_usage("--input has ids of its own; give it or --routing");
    plan_job job = {.options = &o};
    ferry_layer_config_init(&job.config);
    return o.input ? plan_input_file(&job) : plan_shape(&job);
}
