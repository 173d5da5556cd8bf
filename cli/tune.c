/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry tune`: finds what is fastest for a layer on this machine and keeps it where layers look. */
#include "cli/tune.h"

#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/memory.h"
#include "cli/message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) .at = offsetof(tune_options, field)
static const cli_option options[] = {
    {.name = "shape", .kind = CLI_STRING, AT(shape), .argument = SHAPE_ARGUMENT, .help = SHAPE_FORMS SHAPE_SLICES},
    RANKS_OPTION(tune_options, "ranks (default 1)"),
    MODE_OPTIONS(tune_options),
    BACKEND_OPTION(tune_options),
    {.name = "backward",
     .kind = CLI_FLAG,
     AT(backward),
     .help = "a forward that keeps a context and its backward, instead of a forward alone"},
    {.name = "quick", .kind = CLI_FLAG, AT(quick), .help = "fewer candidates and repetitions"},
    {.name = "skew",
     .kind = CLI_DOUBLE,
     AT(skew),
     .min = 0,
     .max = 100,
     .argument = "S",
     .help = "unevenness of drawn ids (default 0)"},
    {.name = "seed",
     .kind = CLI_INT,
     AT(seed),
     .min = 0,
     .max = INT64_MAX,
     .argument = "S",
     .help = "decides the drawn ids (default 1)"},
    {.name = "sm-margin",
     .kind = CLI_INT,
     AT(sm_margin),
     .min = 0,
     .max = 1024,
     .argument = "N",
     .help = "on a GPU: multiprocessors that are left free for other kernels (default: none)"},
    {.name = "tune-file",
     .kind = CLI_STRING,
     AT(tune_file),
     .argument = "FILE",
     .help = "where the result goes (default: $FERRY_TUNE_FILE, else ferry/tune in $XDG_CACHE_HOME or ~/.cache)"},
    {.name = "list", .kind = CLI_FLAG, AT(list), .help = "measure nothing: show what the file has"},
    {.name = "json", .kind = CLI_FLAG, AT(json), .help = "print one JSON object"},
    {0}};

static const cli_command command = {
    .name = "tune",
    .about =
        "Measures a layer on this machine with other choices than those of the rules: the rows of a minibatch; on GPUs "
        "fan-out, pulling warps and multiprocessors for communication alone; on the CPU how many workers communicate. "
        "One after the other is varied, all candidates in turn, and one is kept only when its median beats the "
        "rule's by more than the repetitions scatter. No choice changes a bit of a result.\n\n"
        "What is best is written to a file in which layers of the same extents, most tokens, ranks and workers on the "
        "same kind of machine find it (tune_file in ferry.h). What a caller gives goes before the file, the file "
        "before the rules. A result of a forward and backward goes before one of a forward alone.",
    .options = options,
    .examples = "ferry tune --backend cuda --shape qwen3-30b-a3b --ranks 2\n"
                "ferry tune --shape 256,256,8,2,512 --backward --quick\n"
                "ferry tune --list"};

/* The slowest rank's seconds of a candidate, turn by turn. */
static void slowest(const tune_job *job, int candidate, double *seconds) {
    for (int i = 0; i < job->repeat; i++) {
        seconds[i] = 0;
        for (int r = 0; r < job->options->ranks; r++) {
            double s = job->results[r].seconds[candidate][i];
            if (s > seconds[i]) seconds[i] = s;
        }
    }
}

static int measure(tune_job *job) {
    cli_launch_options launch = {.nranks = (int)job->options->ranks, .processes = (int)job->options->processes};
    return cli_launch(&launch, tune_rank, job);
}

/* Names an axis and what was found along it. */
static void tell(const tune_job *job, int axis, int kept) {
    char values[256];
    double seconds[TUNE_REPEAT];
    if (job->options->json) return;
    for (int i = 0; i < job->candidates; i++) {
        tune_values(&job->candidate[i], values, sizeof values);
        slowest(job, i, seconds);
        printf("%-15s %9.3f ms  %s%s\n", axis < TUNE_AXES ? tune_axis_name[axis] : "again",
               1e3 * tune_median(seconds, job->repeat), values, i == kept ? "  <" : "");
    }
    fflush(stdout);
}

/* The best of the batch: the first, unless another beats it. */
static int choose(const tune_job *job) {
    double base[TUNE_REPEAT], seconds[TUNE_REPEAT], least = INFINITY;
    int best = 0;
    slowest(job, 0, base);
    for (int i = 1; i < job->candidates; i++) {
        slowest(job, i, seconds);
        double median = tune_median(seconds, job->repeat);
        if (!tune_beats(base, seconds, job->repeat) || median >= least) continue;
        least = median;
        best = i;
    }
    return best;
}

/* One layer by rule says what the rules choose here. */
static int begin(tune_job *job, fy_tune_entry *rule, ferry_plan *plan) {
    job->candidates = job->repeat = 1;
    memset(&job->candidate[0], 0, sizeof job->candidate[0]);
    job->candidate[0].backend = job->options->backend;
    int code = measure(job);
    if (code) return code;
    *plan = job->results[0].plan;
    job->workers = job->results[0].workers;
    *rule = fy_tune_key(&job->bench.config, (ferry_backend)job->options->backend, job->results[0].machine, job->workers,
                        (int)job->options->ranks);
    rule->backward = job->options->backward;
    return CLI_OK;
}

static int64_t median_us(const tune_job *job, int candidate) {
    double seconds[TUNE_REPEAT];
    slowest(job, candidate, seconds);
    return (int64_t)llrint(1e6 * tune_median(seconds, job->repeat));
}

/* Along every axis, then the winner, if there is one, against the rule once more. *wins: whether it stays. */
static int search(tune_job *job, fy_tune_entry *best, int *wins) {
    fy_tune_entry rule;
    ferry_plan plan;
    int code = begin(job, &rule, &plan), gpu = job->options->backend == FERRY_CUDA, measured = 0, winner = 0;
    *best = rule;
    job->repeat = job->options->quick ? (gpu ? 9 : 5) : TUNE_REPEAT;
    for (int axis = 0; axis < TUNE_AXES && !code; axis++) {
        job->candidates = tune_candidates(best, &plan, axis, (int)job->options->quick, job->candidate);
        if (job->candidates < 2) continue;
        code = measure(job);
        if (code) break;
        int kept = choose(job);
        tell(job, axis, kept);
        *best = job->candidate[kept];
        measured = 1;
        winner |= kept > 0;
    }
    if (code) return code;
    int kept = 0; /* without a winner the last batch began with the rule */
    if (winner || !measured) {
        job->candidates = winner ? 2 : 1;
        job->candidate[0] = rule;
        job->candidate[1] = *best;
        code = measure(job);
        if (code) return code;
        kept = choose(job);
        tell(job, TUNE_AXES, kept);
    }
    *best = job->candidate[kept];
    *wins = kept > 0;
    best->rule_us = median_us(job, 0);
    best->tuned_us = median_us(job, kept);
    return CLI_OK;
}

/* What no rank could do is said once here, before ids are drawn. All candidates of a batch have a layer. */
static int check_plan(const tune_job *job, const layer_knobs *knobs) {
    const tune_options *o = job->options;
    const bench_job *b = &job->bench;
    int ranks = (int)o->ranks, backward = (int)o->backward, comm, compute;
    if (o->backend == FERRY_CUDA) return CLI_OK;
    knobs_choose_workers(knobs, o->backend, ranks, &comm, &compute);
    return memory_check_layers(&b->config, ranks, comm, compute, 1 + tune_neighbours((int)o->quick), backward,
                               bench_tensor_bytes(b, backward), "fewer ranks or a smaller shape");
}

static int prepare(tune_job *job) {
    const tune_options *o = job->options;
    bench_job *b = &job->bench;
    layer_knobs knobs = {.context = KNOB_CONTEXT_RULE, .sm_margin = o->sm_margin, .tune_file = ""};
    int code = shape_parse(o->shape, (int)o->ranks, &b->shape);
    if (code) return code;
    b->routing.tokens = b->shape.tokens * o->ranks;
    job->bench_options = (bench_options){.ranks = o->ranks, .backend = o->backend, .grad_bf16 = 1};
    b->options = &job->bench_options;
    ferry_layer_config_init(&b->config);
    b->config.hidden = b->shape.hidden;
    b->config.intermediate = b->shape.intermediate;
    b->config.experts = b->shape.experts;
    b->config.slots = b->shape.slots;
    b->config.max_tokens = b->shape.tokens;
    knobs_configure(&knobs, b->routing.tokens, &b->config);
    if (!cli_devices_find((ferry_backend)o->backend, &b->devices)) return cli_fail("%s", b->devices.why);
    code = check_plan(job, &knobs);
    if (code) return code;
    return routing_draw(&b->routing, b->routing.tokens, b->shape.experts, b->shape.slots, o->skew, (uint64_t)o->seed);
}

static int report(const tune_job *job, const fy_tune_entry *best, int wins, const char *path) {
    char values[256];
    tune_values(best, values, sizeof values);
    double gain = (double)best->rule_us / (double)(best->tuned_us > 0 ? best->tuned_us : 1);
    if (job->options->json)
        return cli_print_json(json_pack("{s:s,s:s,s:s,s:i,s:f,s:f,s:f}", "file", path, "machine", best->machine, "best",
                                        values, "workers", (int)best->workers, "rule_ms", 1e-3 * (double)best->rule_us,
                                        "tuned_ms", 1e-3 * (double)best->tuned_us, "gain", gain));
    if (wins)
        printf("best: %s: %.3f ms, by rule %.3f ms (%.3f times as fast); kept in %s\n", values,
               1e-3 * (double)best->tuned_us, 1e-3 * (double)best->rule_us, gain, path);
    else
        printf("best: by rule: %.3f ms; nothing was faster by more than the scatter (kept in %s)\n",
               1e-3 * (double)best->rule_us, path);
    return CLI_OK;
}

static int tune(const tune_options *o, const char *path) {
    static tune_job job; /* too large for a stack */
    fy_tune_entry best;
    int wins = 0;
    size_t bytes = (size_t)o->ranks * sizeof *job.results;
    job.options = o;
    job.results = cli_shared_alloc(bytes);
    job.bench.gates = cli_shared_alloc(sizeof *job.bench.gates);
    int code = job.results && job.bench.gates ? prepare(&job) : cli_fail("no memory for the results");
    if (!code) code = search(&job, &best, &wins);
    if (!code) code = tune_file_put(path, &best);
    if (!code) code = report(&job, &best, wins, path);
    routing_free(&job.bench.routing);
    cli_shared_free(job.results, bytes);
    return code;
}

int ferry_cmd_tune(int argc, char **argv) {
    tune_options o = {.ranks = 1, .seed = 1};
    char path[4096];
    int code;
    if (!cli_parse(&command, argc, argv, &o, NULL, &code)) return code;
    if (!fy_tune_path(o.tune_file, path, sizeof path))
        return cli_usage("no tune file: give --tune-file, or set FERRY_TUNE_FILE or HOME");
    int named = o.tune_file || getenv("FERRY_TUNE_FILE");
    if (o.list) return tune_file_list(path, named, (int)o.json);
    if (!o.shape) return cli_usage("give --shape: a result is for one shape (or --list)");
    code = tune_file_check(path, named);
    return code ? code : tune(&o, path);
}
