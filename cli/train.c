/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry train`: a small mixture-of-experts language model learns a text on R ranks of one or more nodes. */
#include "cli/train.h"

#include "cli/commands.h"
#include "cli/data_file.h"
#include "cli/device.h"
#include "cli/knobs.h"
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/mpi.h"
#include "lm/error.h"

#include <stdio.h>

#define DEFAULT_TEXT "pride-and-prejudice.txt"

#define AT(field) .at = offsetof(train_options, field)
static const cli_option options[] = {
    {.name = "data",
     .kind = CLI_STRING,
     AT(data),
     .argument = "FILE",
     .help = "the text to learn: any bytes; its last tenth is held out (default: " DEFAULT_TEXT ", which comes along)"},
    {.name = "steps",
     .kind = CLI_INT,
     AT(steps),
     .min = 1,
     .max = INT32_MAX,
     .argument = "N",
     .help = "optimizer steps in all, those of a resumed checkpoint included (default 600)"},
    {.name = "decay-steps",
     .kind = CLI_INT,
     AT(decay),
     .min = 1,
     .max = INT32_MAX,
     .argument = "N",
     .help = "the step at which the learning rate has fallen to its floor; kept in checkpoints, so that a training "
             "that is resumed goes on as if it had never ended (default 600)"},
    {.name = "seed",
     .kind = CLI_INT,
     AT(seed),
     .min = 0,
     .max = INT64_MAX,
     .argument = "S",
     .help = "decides initial weights, batches and samples; kept in checkpoints (default 1)"},
    {.name = "ranks",
     .kind = CLI_INT,
     AT(ranks),
     .min = 1,
     .max = LM_SHARDS,
     .argument = "R",
     .help = "1, 2, 4 or 8 ranks share tokens and experts; losses and checkpoints have the same bytes with any "
             "(default 2, with 8 nodes 1)"},
    {.name = "nodes",
     .kind = CLI_INT,
     AT(nodes),
     .min = 1,
     .max = LM_SHARDS,
     .argument = "D",
     .help = "1, 2, 4 or 8 groups of R ranks, 8 ranks in all at most, hold all experts each and share the batch, as "
             "nodes do that a fast network does not "
             "join; their gradients are added in node order, so checkpoints have the same bytes with any number of "
             "ranks and the same D (default 1). Started by an MPI launcher, each process is a rank: the machines are "
             "the nodes unless this says how many there are"},
    MODE_OPTIONS(train_options),
    BACKEND_OPTION(train_options),
    {.name = "save", .kind = CLI_STRING, AT(save), .argument = "FILE", .help = "write a checkpoint at the end"},
    {.name = "save-every",
     .kind = CLI_INT,
     AT(save_every),
     .min = 1,
     .max = INT32_MAX,
     .argument = "N",
     .help = "write it every N steps too, each in the place of the one before"},
    {.name = "resume", .kind = CLI_STRING, AT(resume), .argument = "FILE", .help = "go on from a checkpoint"},
    {.name = "record-routing",
     .kind = CLI_STRING,
     AT(record_routing),
     .argument = "FILE",
     .help = "write the expert ids and weights that the last block's router chose for the last step's batch, as "
             "`ferry bench --routing` and `ferry plan --routing` read them"},
    {.name = "sample",
     .kind = CLI_INT,
     AT(sample),
     .min = 1,
     .max = 1000000,
     .argument = "N",
     .help = "print N bytes of generated text at the end; on a terminal, what is no text is shown as ?"},
    {.name = "temperature",
     .kind = CLI_DOUBLE,
     AT(temperature),
     .min = 0,
     .max = 100,
     .argument = "T",
     .help = "of the generated text: below 1 is more careful (default 0.8)"},
    {.name = "timeout",
     .kind = CLI_DOUBLE,
     AT(timeout_s),
     .min = 1,
     .max = 86400,
     .argument = "SECONDS",
     .help = "for a rank to appear or to make progress (default 600)"},
    {.name = "json", .kind = CLI_FLAG, AT(json), .help = "print one JSON object per line and nothing else"},
    {0}};

static const cli_command command = {
    .name = "train",
    .about =
        "Trains a byte-level transformer whose feed-forward parts are mixture-of-experts layers computed by Ferry: "
        "2 blocks, width 128, 8 experts of which each byte takes 2.\n"
        "Every 50 steps, in short trainings ten times, it says the last batch's loss and the loss on a sample of the "
        "held-out text, 128 windows of 64 bytes. It ends with the loss on all windows of the held-out text beside the "
        "text's bigram entropy, all in nats per byte; after 600 steps or more also with whether it is at least 0.25 "
        "below that.",
    .options = options,
    .examples = "ferry train\n"
                "ferry train --steps 300 --save half.safetensors\n"
                "ferry train --resume half.safetensors --ranks 8 --processes --sample 500\n"
                "mpirun -n 4 --hostfile hosts ferry train --save model.safetensors --save-every 50\n"};

static int prepare(train_job *job, const char **text_path, char *found, size_t room) {
    train_options *o = &job->options;
    int code = o->resume ? train_checkpoint_open(job) : 0;
    if (code) return code;
    if (o->resume && job->first_step > o->steps)
        return cli_fail("the checkpoint %s has done %lld steps, more than --steps %lld", o->resume,
                        (long long)job->first_step, (long long)o->steps);
    if (o->record_routing && job->first_step == o->steps)
        return cli_usage("--record-routing: there is no step to record; --steps is what %s has done", o->resume);
    if (!o->data && !cli_data_file(DEFAULT_TEXT, found, room))
        return cli_fail("the default text data/" DEFAULT_TEXT " is not there; name a text with --data");
    *text_path = o->data ? o->data : found;
    code = train_places_check(o, *text_path);
    if (code) return code;
    if (lm_text_load(&job->text, *text_path, job->config.sequences, job->config.length))
        return cli_fail("%s", lm_error());
    return 0;
}

/* Ranks of this program's own making. */
static int launch(train_job *job) {
    const train_options *o = &job->options;
    cli_launch_options how = {
        .nranks = (int)o->ranks, .nodes = (int)o->nodes, .processes = (int)o->processes, .timeout_s = o->timeout_s};
    int code = train_routing_begin(job);
    if (!code) code = cli_launch(&how, train_rank, job);
    if (!code) code = train_routing_write(job);
    train_routing_end(job);
    return code;
}

/* This process is one rank of many that an MPI launcher has started. */
static int start_mpi(train_job *job, ferry_bootstrap bootstrap[CLI_BOOTSTRAPS]) {
    train_options *o = &job->options;
    cli_mpi_place place;
    if (o->record_routing)
        return cli_usage("--record-routing: ranks that an MPI launcher started share no memory to record it in");
    int code = cli_mpi_start((int)o->nodes, o->timeout_s, &place, bootstrap);
    if (code) return code;
    if (o->ranks && o->ranks != place.ranks)
        return cli_usage("--ranks %d: the MPI launcher started %d on each of %d nodes", (int)o->ranks, place.ranks,
                         place.nodes);
    o->ranks = place.ranks;
    o->nodes = place.nodes;
    job->mpi = 1;
    job->machine_rank = place.machine_rank;
    job->machine_ranks = place.machine_ranks;
    return 0;
}

/* Says nothing about ranks that are yet to be found. */
static int check_ranks(const train_options *o) {
    int64_t ranks = o->ranks ? o->ranks : 1, nodes = o->nodes ? o->nodes : 1;
    if (LM_SHARDS % (nodes * ranks) == 0) return 0;
    if (LM_SHARDS % ranks) return cli_usage("--ranks: %d, expected 1, 2, 4 or 8", (int)ranks);
    if (LM_SHARDS % nodes) return cli_usage("--nodes: %d, expected 1, 2, 4 or 8", (int)nodes);
    return cli_usage("all ranks together, %d nodes of %d, are %d, expected %d at most", (int)nodes, (int)ranks,
                     (int)(nodes * ranks), LM_SHARDS);
}

/* Layers that take turns on a GPU would wait for each other for ever: the ranks of each are on another GPU too. */
static int check_gpus(const train_job *job) {
    const train_options *o = &job->options;
    int ranks = job->mpi ? job->machine_ranks : (int)(o->nodes * o->ranks); /* of this machine */
    if (job->gpus == 0 || o->nodes == 1 || o->ranks == 1 || ranks <= job->gpus) return 0;
    return cli_usage("%d ranks of several nodes need a GPU each, but this machine has %d; nodes of one rank may share",
                     ranks, job->gpus);
}

static int train(train_job *job) {
    train_options *o = &job->options;
    ferry_bootstrap bootstrap[CLI_BOOTSTRAPS];
    char found[4096];
    const char *path = NULL;
    int code = check_ranks(o), mpi = cli_mpi_started();
    if (!code && mpi) code = start_mpi(job, bootstrap);
    if (!o->nodes) o->nodes = 1;
    if (!o->ranks) o->ranks = o->nodes == LM_SHARDS ? 1 : 2;
    if (!code) code = check_ranks(o);
    if (!code) code = check_gpus(job);
    if (!code) code = prepare(job, &path, found, sizeof found);
    if (!code && mpi) code = train_agree(job, bootstrap);
    if (!code)
        code = mpi ? train_rank(job, bootstrap, (int)(bootstrap[CLI_ACROSS].rank * o->ranks) + bootstrap[CLI_NODE].rank)
                   : launch(job);
    return mpi ? cli_mpi_end(code) : code;
}

int ferry_cmd_train(int argc, char **argv) {
    train_job job = {.config = lm_config_default()};
    train_options *o = &job.options;
    *o =
        (train_options){.steps = job.config.decay_steps, .decay = -1, .seed = -1, .temperature = 0.8, .timeout_s = 600};
    cli_devices devices;
    int code;
    if (!cli_parse(&command, argc, argv, o, NULL, &code)) return code;
    if (!cli_devices_find((ferry_backend)o->backend, &devices)) return cli_fail("%s", devices.why);
    if (o->temperature <= 0) return cli_usage("--temperature must be more than 0, at most 100");
    if (o->save_every && !o->save) return cli_usage("--save-every needs a --save FILE");
    job.config.backend = (ferry_backend)o->backend;
    if (o->backend == FERRY_CUDA) job.gpus = devices.count;
    if (o->decay >= 0) job.config.decay_steps = o->decay;
    if (o->seed >= 0) job.config.seed = (uint64_t)o->seed;

    code = train(&job);
    lm_text_free(&job.text);
    if (job.checkpoint) safetensors_close(job.checkpoint);
    return code;
}
