/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry bench`: how long a layer's forward and backward take, beside what the product kernel alone reaches. */
#include "cli/bench.h"

#include "cli/bench_micro.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/machine.h"
#include "cli/memory.h"
#include "cli/message.h"
#include "rules/place.h"

#include <string.h>

#define AT(field) .at = offsetof(bench_options, field)
static const cli_option options[] = {
    {.name = "shape",
     .kind = CLI_STRING,
     AT(shape),
     .argument = "all|" SHAPE_ARGUMENT,
     .help = "all of the names, one after the other; or one of " SHAPE_HELP},
    {.name = "scale",
     .kind = CLI_DOUBLE,
     AT(scale),
     .min = 1,
     .max = 10000,
     .argument = "F",
     .help = SHAPE_SCALE_HELP " (default: the least whole number with which a run takes about 20 s on two cores; "
                              "printed; on a GPU 1)"},
    RANKS_OPTION(bench_options, "ranks (default 1)"),
    MODE_OPTIONS(bench_options),
    {.name = "repeat",
     .kind = CLI_INT,
     AT(repeat),
     .min = 1,
     .max = BENCH_MAX_REPEAT,
     .argument = "N",
     .help = "repetitions of forward and backward, with the product kernel before and after each, after one repetition "
             "that does not count (default 7; on a GPU 21)"},
    ROUTING_OPTIONS(bench_options),
    LAYER_KNOB_OPTIONS(bench_options, knobs),
    ISA_OPTION(bench_options),
    GRAD_DTYPE_OPTION(bench_options, "dtype of the weight gradients, which are overwritten (default bf16)"),
    BACKEND_OPTION(bench_options),
    {.name = "micro",
     .kind = CLI_FLAG,
     AT(micro),
     .help =
         "no layer, but what it is made of, on GPUs: how fast rows are copied in random order by 1 to all "
         "multiprocessors, within a GPU, pulled and pushed, one way, both ways and with one hot owner, and how long "
         "completion signals take; beside published figures"},
    {.name = "json",
     .kind = CLI_FLAG,
     AT(json),
     .help = "print one JSON object; with --shape all one for each shape, a line each"},
    {0}};

static const cli_command command = {
    .name = "bench",
    .about =
        "Measures one layer: milliseconds of forward and backward on the slowest rank (median, least and most over the "
        "repetitions), the rate of its products, and the share of what the product kernel alone reaches in the same "
        "run with all compute workers busy on products of the layer's own gate and up shape. Then bytes moved per "
        "phase and memory.\n\n"
        "Named shapes are far too large for a CPU, so H, I and T are divided by a factor, which is printed.\n\n"
        "On GPUs a repetition is the plain products, a forward without a context, the plain products, a forward with a "
        "context and its backward, and the plain products; all GPUs meet before each of them, events on the GPU "
        "measure, and everything is enqueued before it starts, so that no time of the host is in it. The score is "
        "floor / measured: the floor is the largest of the busiest rank's operations at the rate R* of the plain "
        "product (cuBLAS, where its library is found, or the layer's own kernel) beside it, its bytes over links, and "
        "its bytes of memory at the rate of copies.",
    .options = options,
    .examples = "ferry bench --shape kimi-slice\n"
                "ferry bench --shape qwen3-30b-a3b --ranks 2 --processes --skew 1\n"
                "ferry bench --backend cuda --ranks 2 --shape all\n"
                "ferry bench --backend cuda --ranks 2 --micro\n"
                "ferry bench --shape 1024,512,8,2,1024 --ring 256 --context recompute --json"};

/* Operations of a repetition, forward and backward on all ranks, that the default scale allows. */
static const double repetition_flop = 430e9;

/* The file's tokens and slots stay as they are; H and I alone are scaled then. */
static layer_shape scaled(const bench_job *job, const layer_shape *shape, double factor) {
    layer_shape s = shape_scaled(*shape, factor);
    if (job->options->routing) s.tokens = shape->tokens;
    return s;
}

static void choose_scale(bench_job *job, const layer_shape *shape) {
    int ranks = (int)job->options->ranks;
    job->scale = job->options->scale > 0 ? job->options->scale : 1;
    job->shape = scaled(job, shape, job->scale);
    if (job->options->scale > 0 || job->options->backend == FERRY_CUDA) return;
    while (3 * shape_flop(&job->shape, ranks) > repetition_flop && (job->shape.hidden > 64 || job->shape.tokens > 1) &&
           job->scale < 10000)
        job->shape = scaled(job, shape, ++job->scale);
}

/* What no rank could do is said once here, before ids are drawn and any rank starts. A GPU's plan needs the GPU, and
 * its memory is its own. */
static int check_plan(const bench_job *job) {
    const bench_options *o = job->options;
    if (o->backend == FERRY_CUDA) return CLI_OK;
    if (!machine_isa_name((ferry_isa)o->isa)) return cli_fail("%s", ferry_last_error());
    return memory_check_layers(&job->config, (int)o->ranks, job->comm_workers, job->compute_workers, 1, 1,
                               bench_tensor_bytes(job, 1) + bench_product_bytes(job),
                               "a larger --scale, fewer ranks or a smaller shape");
}

static int prepare(bench_job *job) {
    const bench_options *o = job->options;
    layer_shape shape;
    int code = shape_parse(o->shape, (int)o->ranks, &shape);
    if (code) return code;
    if (o->routing) {
        code = routing_read_for(&job->routing, o->routing, o->shape, &shape);
        if (code) return code;
        shape.tokens = fy_split_size(job->routing.tokens, o->ranks, 0);
    }
    choose_scale(job, &shape);
    if (!o->routing) job->routing.tokens = job->shape.tokens * o->ranks;
    job->config.hidden = job->shape.hidden;
    job->config.intermediate = job->shape.intermediate;
    job->config.experts = job->shape.experts;
    job->config.slots = job->shape.slots;
    job->config.max_tokens = job->shape.tokens;
    knobs_configure(&o->knobs, job->routing.tokens, &job->config);
    knobs_choose_workers(&o->knobs, o->backend, (int)o->ranks, &job->comm_workers, &job->compute_workers);
    code = check_plan(job);
    if (code || o->routing) return code;
    return routing_draw(&job->routing, job->routing.tokens, shape.experts, shape.slots, o->skew, (uint64_t)o->seed);
}

static int measure(bench_job *job) {
    cli_launch_options launch = {.nranks = (int)job->options->ranks, .processes = (int)job->options->processes};
    size_t bytes = (size_t)launch.nranks * sizeof *job->results;
    job->results = cli_shared_alloc(bytes);
    if (!job->results) return cli_fail("no memory for the results");
    int code = cli_launch(&launch, bench_rank, job);
    if (!code) code = job->options->backend == FERRY_CUDA ? bench_cuda_report(job) : bench_report(job);
    cli_shared_free(job->results, bytes);
    return code;
}

static int bench(const bench_options *o, const cli_devices *devices, bench_gates *gates) {
    bench_job job = {.options = o, .devices = *devices, .gates = gates};
    ferry_layer_config_init(&job.config);
    int code = prepare(&job);
    if (!code) code = measure(&job);
    routing_free(&job.routing);
    return code;
}

#define SHAPE_NAME_ENTRY(name, h, i, e, slice, k, t) name,
static const char *const shape_names[] = {SHAPE_MAP(SHAPE_NAME_ENTRY)};
enum { SHAPES = sizeof shape_names / sizeof *shape_names };

int ferry_cmd_bench(int argc, char **argv) {
    bench_options o = {
        .shape = SHAPE_DEFAULT, .ranks = 1, .seed = 1, .knobs.context = KNOB_CONTEXT_RULE, .grad_bf16 = 1};
    cli_devices devices;
    int code;
    if (!cli_parse(&command, argc, argv, &o, NULL, &code)) return code;
    if (o.micro && o.backend != FERRY_CUDA) return cli_usage("--micro measures GPUs: --backend cuda");
    code = knobs_check_backend(&o.knobs, o.isa, o.backend);
    if (code) return code;
    if (!cli_devices_find((ferry_backend)o.backend, &devices)) return cli_fail("%s", devices.why);
    if (!o.repeat) o.repeat = o.micro ? 5 : o.backend == FERRY_CUDA ? 21 : 7;
    bench_gates *gates = cli_shared_alloc(sizeof *gates);
    if (!gates) return cli_fail("no memory for the ranks' counters");
    if (o.micro) return bench_micro(&o, &devices, gates);
    int all = strcmp(o.shape, "all") == 0;
    for (int i = 0; i < (all ? SHAPES : 1) && !code; i++) {
        if (all) o.shape = shape_names[i];
        code = bench(&o, &devices, gates);
    }
    return code;
}
