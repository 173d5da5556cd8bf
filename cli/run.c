/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry run IN OUT`: one layer on tensors from a file, on R ranks, with the result in another file. */
#include "cli/run.h"

#include "cli/commands.h"
#include "cli/device.h"
#include "cli/launch.h"
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/place.h"
#include "cli/same_file.h"
#include "rules/bf16.h"

#include <inttypes.h>

#define AT(field) .at = offsetof(run_options, field)
static const cli_option options[] = {
    RANKS_OPTION(run_options, "ranks (default: the length of tokens_per_rank, else 1)"),
    MODE_OPTIONS(run_options),
    LAYER_KNOB_OPTIONS(run_options, knobs),
    ISA_OPTION(run_options),
    GRAD_DTYPE_OPTION(run_options, "dtype of the weight gradients (default f32)"),
    {.name = "swiglu-limit",
     .kind = CLI_DOUBLE,
     AT(swiglu_limit),
     .min = 0,
     .max = INT32_MAX,
     .argument = "L",
     .help = "clamp: gate values to at most L, up values to -L..L (default 0: none)"},
    BACKEND_OPTION(run_options),
    {.name = "timeout",
     .kind = CLI_DOUBLE,
     AT(timeout_s),
     .min = 0,
     .max = 86400,
     .argument = "SECONDS",
     .help = "deadline of every wait for another rank (default 0: 600 s to enter a call, 60 s for progress in it)"},
    {.name = "json",
     .kind = CLI_FLAG,
     AT(json),
     .help = "print one JSON object: knobs, macrobatches, ring_high_water, pulls, recomputed_rows, bytes per phase, "
             "planned_bytes and peak_bytes (with the communicator's, see ferry plan): totals, per call and per rank"},
    {0}};

static const cli_positional positionals[] = {
    {"IN.safetensors", "the inputs"}, {"OUT.safetensors", "where the results go"}, {NULL, NULL}};

static const cli_command command = {
    .name = "run",
    .about =
        "Runs one mixture-of-experts layer on tensors from a file and writes its results to another.\n\n"
        "IN holds x BF16 [N,H]; ids I32 or I64 [N,K], -1 for no expert; weights F32 [N,K]; gate, up BF16 [E,I,H]; "
        "down BF16 [E,H,I]; optionally shared_gate, shared_up BF16 [S,H] and shared_down BF16 [H,S]; optionally dout "
        "BF16 [N,H], then backward runs too; optionally tokens_per_rank I32 [R], otherwise tokens are split into "
        "contiguous blocks as evenly as possible, the first ranks having one more.\n\n"
        "OUT takes the place of a safetensors file and of nothing else. It gets out BF16 [N,H]; with dout also dx BF16 "
        "[N,H], dweights F32 [N,K], and the gradients dgate, dup, ddown and, where IN has a shared expert, "
        "dshared_gate, dshared_up, dshared_down, shaped like their weights. Gradients of the shared expert are sums "
        "over a rank's own tokens; they are added over the ranks in rank order in F32 (and rounded once to BF16 where "
        "that is asked for), so their last bits depend on R. Nothing else does.\n\n"
        "Ids outside -1..E-1 count as -1: OUT is written, a message says where the first one is and how many there "
        "are, and the exit code is 1.",
    .positionals = positionals,
    .options = options,
    .examples = "ferry run layer.safetensors result.safetensors\n"
                "ferry run --backend cuda --ranks 2 layer.safetensors result.safetensors\n"
                "ferry run --ranks 4 --processes --ring 256 --json layer.safetensors result.safetensors\n"
                "ferry run --context recompute --grad-dtype bf16 layer.safetensors result.safetensors"};

/* ---- Outputs ---- */

/* An output: where its memory hangs in run_outputs, and what the file says about it. */
typedef struct output_list {
    safetensors_tensor tensors[9];
    size_t count;
    int failed;
} output_list;

/* Allocates a tensor that children write, lists it for the file and returns its memory. */
static void *add_output(output_list *list, const char *name, safetensors_dtype dtype, int dims, int64_t a, int64_t b,
                        int64_t c) {
    safetensors_tensor *tensor = &list->tensors[list->count];
    *tensor = (safetensors_tensor){.name = name, .dtype = dtype, .dims = dims, .shape = {a, b, c}};
    tensor->bytes = safetensors_dtype_bytes(dtype) * (size_t)a * (size_t)b * (size_t)(dims == 3 ? c : 1);
    void *memory = cli_shared_alloc(tensor->bytes);
    tensor->data = memory;
    if (memory) list->count++;
    list->failed |= memory == NULL;
    return memory;
}

static void add_outputs(output_list *list, run_outputs *o, const run_problem *p, safetensors_dtype grad) {
    o->out = add_output(list, "out", SAFETENSORS_BF16, 2, p->tokens, p->hidden, 0);
    if (!p->dout) return;
    o->dx = add_output(list, "dx", SAFETENSORS_BF16, 2, p->tokens, p->hidden, 0);
    o->dweights = add_output(list, "dweights", SAFETENSORS_F32, 2, p->tokens, p->slots, 0);
    o->dgate = add_output(list, "dgate", grad, 3, p->experts, p->intermediate, p->hidden);
    o->dup = add_output(list, "dup", grad, 3, p->experts, p->intermediate, p->hidden);
    o->ddown = add_output(list, "ddown", grad, 3, p->experts, p->hidden, p->intermediate);
}

static void free_outputs(output_list *list) {
    for (size_t i = 0; i < list->count; i++) cli_shared_free((void *)list->tensors[i].data, list->tensors[i].bytes);
}

/* Lists a gradient of the shared expert: the ranks' parts, added in rank order. */
static void add_shared_gradient(output_list *list, const char *name, safetensors_dtype grad, int64_t rows,
                                int64_t columns, const float *parts, int nranks) {
    void *to = add_output(list, name, grad, 2, rows, columns, 0);
    int64_t count = rows * columns;
    for (int64_t i = 0; to && i < count; i++) {
        float sum = parts[i];
        for (int r = 1; r < nranks; r++) sum += parts[r * count + i];
        if (grad == SAFETENSORS_BF16) {
            ((uint16_t *)to)[i] = fy_bf16_from_f32(sum);
        } else {
            ((float *)to)[i] = fy_one_nan(sum);
        }
    }
}

/* ---- The run ---- */

static void configure(run_job *job) {
    const run_options *o = job->options;
    const run_problem *p = job->problem;
    ferry_layer_config *config = &job->config;
    *config = run_problem_config(p);
    config->swiglu_limit = (float)o->swiglu_limit;
    knobs_configure(&o->knobs, p->tokens, config);
    knobs_choose_workers(&o->knobs, o->backend, p->nranks, &job->comm_workers, &job->compute_workers);
}

/* What no rank could do is said once here, before any rank starts. A GPU's plan needs the GPU. */
static int check_plan(const run_job *job) {
    ferry_plan plan = {.size = sizeof plan};
    cli_devices devices;
    if (!cli_devices_find((ferry_backend)job->options->backend, &devices)) return cli_fail("%s", devices.why);
    if (job->options->backend == FERRY_CUDA) return CLI_OK;
    if (!machine_isa_name((ferry_isa)job->options->isa)) return cli_fail("%s", ferry_last_error());
    ferry_status status = ferry_layer_plan(&job->config, FERRY_CPU, 0, job->problem->nranks, job->comm_workers,
                                           job->compute_workers, &plan);
    return status ? cli_fail_status(status, "planning the layer") : CLI_OK;
}

/* The report is the same on all ranks. */
static int report_bad_ids(const run_job *job) {
    const ferry_report *report = &job->results[0].report;
    if (report->status == FERRY_OK) return CLI_OK;
    return cli_fail("%" PRId64 " expert id%s outside -1..%" PRId64 " counted as -1; the first is %" PRId64
                    " on rank %d, token %" PRId64 ", slot %" PRId64,
                    report->count, report->count == 1 ? "" : "s", job->problem->experts - 1, report->id, report->rank,
                    report->token, report->slot);
}

static int write_outputs(const run_job *job, output_list *list) {
    const run_problem *p = job->problem;
    const run_outputs *o = &job->outputs;
    safetensors_dtype grad = job->options->grad_bf16 ? SAFETENSORS_BF16 : SAFETENSORS_F32;
    char error[SAFETENSORS_ERROR_BYTES];
    if (p->dout && p->has_shared) {
        add_shared_gradient(list, "dshared_gate", grad, p->shared, p->hidden, o->dshared_gate, p->nranks);
        add_shared_gradient(list, "dshared_up", grad, p->shared, p->hidden, o->dshared_up, p->nranks);
        add_shared_gradient(list, "dshared_down", grad, p->hidden, p->shared, o->dshared_down, p->nranks);
    }
    if (list->failed) return cli_fail("no memory for the gradients of the shared expert");
    return safetensors_write(job->options->out, list->tensors, list->count, NULL, 0, error) ? cli_fail("%s", error)
                                                                                            : CLI_OK;
}

/* Launches the ranks and, when all went well, writes and reports. */
static int compute(run_job *job, output_list *list) {
    cli_launch_options launch = {.nranks = job->problem->nranks,
                                 .processes = (int)job->options->processes,
                                 .timeout_s = job->options->timeout_s};
    int code = cli_launch(&launch, run_rank, job);
    if (!code) code = write_outputs(job, list);
    if (code) return code;
    int bad_ids = report_bad_ids(job);
    code = run_report(job);
    return bad_ids ? bad_ids : code;
}

static int run(const run_options *o, const run_problem *p) {
    run_job job = {.options = o, .problem = p};
    output_list list = {.count = 0};
    configure(&job);
    int code = check_plan(&job);
    if (code) return code;

    size_t result_bytes = (size_t)p->nranks * sizeof *job.results;
    size_t shared_bytes = p->dout ? (size_t)p->nranks * (size_t)(p->shared * p->hidden) * sizeof(float) : 0;
    job.results = cli_shared_alloc(result_bytes);
    float *shared = cli_shared_alloc(3 * shared_bytes);
    add_outputs(&list, &job.outputs, p, o->grad_bf16 ? SAFETENSORS_BF16 : SAFETENSORS_F32);
    if (job.results && shared && !list.failed) {
        job.outputs.dshared_gate = shared;
        job.outputs.dshared_up = shared + shared_bytes / sizeof(float);
        job.outputs.dshared_down = shared + 2 * shared_bytes / sizeof(float);
        code = compute(&job, &list);
    } else {
        code = cli_fail("no memory for the results");
    }
    free_outputs(&list);
    cli_shared_free(shared, 3 * shared_bytes);
    cli_shared_free(job.results, result_bytes);
    return code;
}

int ferry_cmd_run(int argc, char **argv) {
    run_options o = {.knobs.context = KNOB_CONTEXT_RULE};
    const char *paths[2];
    int code;
    if (!cli_parse(&command, argc, argv, &o, paths, &code)) return code;
    code = knobs_check_backend(&o.knobs, o.isa, o.backend);
    if (code) return code;
    if (o.swiglu_limit > 0 && (float)o.swiglu_limit == 0)
        return cli_usage("--swiglu-limit: %g is no F32 number but 0, which means no clamp", o.swiglu_limit);
    o.in = paths[0];
    o.out = paths[1];
    if (cli_same_file(o.in, o.out))
        return cli_usage("%s and %s are the same file, whose inputs the results would replace; give another OUT", o.in,
                         o.out);
    code = place_check("OUT", o.out, &(place_kind){.name = "safetensors file"});
    if (code) return code;
    run_problem problem;
    code = run_problem_open(&problem, &o);
    if (!code) code = run(&o, &problem);
    run_problem_close(&problem);
    return code;
}
