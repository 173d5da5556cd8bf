/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry trace`: a timeline of every worker of every rank in one call. */
#include "cli/trace.h"

#include "cli/commands.h"
#include "cli/device.h"
#include "cli/launch.h"
#include "cli/memory.h"
#include "cli/message.h"
#include "cli/options.h"
#include "cli/place.h"
#include "cli/same_file.h"
#include "cli/shapes.h"

#include <inttypes.h>

#define AT(field) .at = offsetof(trace_options, field)
static const cli_option options[] = {
    {.name = "input",
     .kind = CLI_STRING,
     AT(input),
     .group = "layer",
     .argument = "IN.safetensors",
     .help = "a layer as `ferry run` reads it; this or --shape has to be given"},
    {.name = "shape",
     .kind = CLI_STRING,
     AT(shape),
     .group = "layer",
     .argument = SHAPE_ARGUMENT,
     .help = "a layer with random values and routing: hidden and intermediate size, experts, slots, tokens per rank"},
    RANKS_OPTION(trace_options, "ranks (default: what the input says, else 1)"),
    MODE_OPTIONS(trace_options),
    BACKEND_OPTION(trace_options),
    LAYER_KNOB_OPTIONS(trace_options, knobs),
    {.name = "backward", .kind = CLI_FLAG, AT(backward), .help = "trace a backward after the forward"},
    {.name = "events",
     .kind = CLI_INT,
     AT(events),
     .min = 1,
     .max = 100000000,
     .argument = "N",
     .help = "room for the events of one worker (default 65536, on a GPU 16384); what does not fit is lost, and said"},
    {.name = "out",
     .kind = CLI_STRING,
     AT(json),
     .argument = "FILE.json",
     .help = "the timeline in the Chrome trace event format, for Perfetto or chrome://tracing"},
    {.name = "svg", .kind = CLI_STRING, AT(svg), .argument = "FILE.svg", .help = "the timeline as a picture"},
    {0}};

static const cli_command command = {
    .name = "trace",
    .about = "Records what every worker of every rank does in one call, and when it waits.\n\n"
             "Runs a forward (and a backward) to warm up and once more with its events kept. Prints what the phases "
             "took; writes the timeline to --out and --svg, which replace nothing but their like. On GPUs the workers "
             "are the roles inside every multiprocessor.\n\n"
             "Named shapes are traced as large as they are. A layer that needs more memory than is available is "
             "refused.",
    .options = options,
    .examples = "ferry trace --shape 2048,256,16,4,1024 --ring 512 --svg timeline.svg\n"
                "ferry trace --input layer.safetensors --ranks 4 --backward --out timeline.json\n"
                "ferry trace --backend cuda --shape kimi-slice --ranks 2 --backward --svg timeline.svg"};

static const place_kind json_kind = {.name = "timeline of ferry trace", .beginning = TRACE_JSON_BEGINNING};
static const place_kind svg_kind = {.name = "picture of ferry trace", .beginning = TRACE_SVG_BEGINNING};

/* ---- The run ---- */

static void configure(trace_job *job) {
    const trace_options *o = job->options;
    const run_problem *p = job->problem;
    ferry_layer_config *config = &job->config;
    *config = run_problem_config(p);
    knobs_configure(&o->knobs, p->tokens, config);
}

static int trace(trace_job *job) {
    const trace_options *o = job->options;
    cli_launch_options launch = {.nranks = job->problem->nranks, .processes = (int)o->processes};
    int code = cli_launch(&launch, trace_rank, job);
    int64_t lost = trace_log_lost(&job->log);
    if (!code && lost > 0)
        cli_note("%" PRId64 " events found no room: the timeline has gaps; give --events more than %" PRId64, lost,
                 job->log.buffers->capacity);
    if (!code && job->log.sms) trace_log_align(&job->log);
    if (!code && o->json) code = trace_write_json(job, o->json);
    if (!code && o->svg) code = trace_write_svg(job, o->svg);
    return code ? code : trace_report(job);
}

/* Multiprocessors of the rank that has most. */
static int most_processors(const trace_job *job, const cli_devices *devices) {
    int sharing = job->problem->nranks / devices->count;
    int share = devices->processors / (sharing > 1 ? sharing : 1);
    return job->compute_workers > 0 && job->compute_workers < share ? job->compute_workers : share;
}

/* Bytes of the host that the calls will touch; tensors of a file stay in the file, results on a GPU there. */
static double needed_bytes(const trace_job *job, int drawn) {
    const run_problem *p = job->problem;
    int backward = (int)job->options->backward;
    double bytes = drawn ? memory_of_inputs(&job->config, p->tokens, 1) : 0;
    if (job->options->backend == FERRY_CUDA) return bytes;
    return bytes + memory_of_results(&job->config, p->tokens, backward, 4) +
           memory_of_layer(&job->config, p->nranks, job->comm_workers, job->compute_workers, backward);
}

/* `block`: for tensors that are to be drawn; NULL when a file has them. */
static int run(const trace_options *o, run_problem *p, trace_block *block) {
    trace_job job = {.options = o, .problem = p, .plan = {.size = sizeof job.plan}};
    int64_t events = o->events ? o->events : o->backend == FERRY_CUDA ? 16384 : 65536;
    cli_devices devices = {.count = 0};
    if (o->backend == FERRY_CUDA && !cli_devices_find(FERRY_CUDA, &devices)) return cli_fail("%s", devices.why);
    configure(&job);
    knobs_choose_workers(&o->knobs, o->backend, p->nranks, &job.comm_workers, &job.compute_workers);
    int sms = o->backend == FERRY_CUDA ? most_processors(&job, &devices) : 0;
    ferry_status status = ferry_layer_plan(&job.config, (ferry_backend)o->backend, 0, p->nranks, job.comm_workers,
                                           sms ? sms : job.compute_workers, &job.plan);
    if (status) return cli_fail_status(status, "planning the layer");
    int code = memory_check("the layer and its tensors", needed_bytes(&job, block != NULL), "a smaller layer");
    if (!code && block) code = trace_problem_fill(p, block);
    if (code) return code;
    if (sms ? trace_log_create_gpu(&job.log, p->nranks, sms, events)
            : trace_log_create(&job.log, p->nranks, job.comm_workers, job.compute_workers, events))
        return cli_fail("no memory for %" PRId64 " events per worker", events);
    code = trace(&job);
    trace_log_destroy(&job.log);
    return code;
}

static int trace_input(const trace_options *o) {
    run_options as_run = {.in = o->input, .ranks = o->ranks};
    run_problem problem;
    int code = run_problem_open(&problem, &as_run);
    if (!code && o->backward && !problem.dout)
        code = cli_usage("--backward needs the tensor 'dout', which %s has not", o->input);
    if (!code) code = run(o, &problem, NULL);
    run_problem_close(&problem);
    return code;
}

static int trace_shape(const trace_options *o) {
    run_problem problem;
    trace_block block = {.memory = NULL};
    int code = trace_problem_size(&problem, o);
    if (code) return code;
    code = run(o, &problem, &block);
    trace_problem_free(&problem, &block);
    return code;
}

/* No file may take the place of another, or of somebody else's. */
static int check_files(const trace_options *o) {
    const char *const files[] = {o->input, o->json, o->svg};
    for (int i = 0; i < 3; i++)
        for (int j = i + 1; j < 3; j++)
            if (files[i] && files[j] && cli_same_file(files[i], files[j]))
                return cli_usage("%s and %s are the same file; every one of --input, --out and --svg needs its own",
                                 files[i], files[j]);
    int code = o->json ? place_check("--out", o->json, &json_kind) : CLI_OK;
    if (o->svg && !code) code = place_check("--svg", o->svg, &svg_kind);
    return code;
}

int ferry_cmd_trace(int argc, char **argv) {
    trace_options o = {.knobs.context = KNOB_CONTEXT_RULE};
    int code;
    if (!cli_parse(&command, argc, argv, &o, NULL, &code)) return code;
    code = knobs_check_backend(&o.knobs, FERRY_ISA_AUTO, o.backend);
    if (!code) code = check_files(&o);
    if (code) return code;
    if (o.input) return trace_input(&o);
    if (o.shape) return trace_shape(&o);
    return cli_usage("give --shape or --input: there is nothing to trace");
}
