/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `ferry train`: options, checkpoint files, one rank's work, several nodes, and what is printed. */
#ifndef FERRY_CLI_TRAIN_H
#define FERRY_CLI_TRAIN_H

#include "cli/launch.h"
#include "cli/routing.h"
#include "cli/safetensors.h"
#include "lm/trainer.h"

typedef struct train_options {
    const char *data, *save, *resume, *record_routing;
    int64_t steps, decay, seed; /* decay, seed: -1 when not given */
    int64_t save_every;         /* 0: at the end only */
    int64_t ranks, nodes;       /* ranks of each node; 0 until known */
    int64_t processes, backend;
    int64_t sample;
    double temperature, timeout_s;
    int64_t json;
} train_options;

typedef struct train_job {
    train_options options;
    lm_config config;
    lm_text text;
    safetensors_file *checkpoint;    /* to resume from, checked; NULL: a new training */
    int64_t first_step;              /* steps that the checkpoint has done */
    int mpi;                         /* 1: ranks are processes that an MPI launcher started */
    int machine_rank, machine_ranks; /* then: of this machine */
    int gpus;                        /* of this machine, when ranks compute on them; otherwise 0 */
    routing recorded;                /* of the last step, in memory that ranks share */
} train_job;

/* A cli_rank_main; `user` is the train_job. */
int train_rank(void *user, const ferry_bootstrap *bootstrap, int rank);

/* ---- Before the work (train_place.c) ---- */

/* Whether --save and --record-routing can be written and replace nothing but a file of their kind. 0, or the exit code
 * after a message. */
int train_places_check(const train_options *options, const char *text_path);

/* ---- Checkpoint files (train_checkpoint.c) ---- */

/* Whether the file says that it is a checkpoint of this program. */
int train_checkpoint_is(const safetensors_file *file);

/* Opens job->options.resume, checks that it holds every tensor of the default model, and takes seed, schedule and step
 * from it. 0, or the exit code after a message. */
int train_checkpoint_open(train_job *job);
/* Whether the open checkpoint was trained on another text. Files of before that was written say nothing: 0. */
int train_checkpoint_other_text(const train_job *job);
/* Copies the open checkpoint's tensors into the trainer. */
void train_checkpoint_restore(const train_job *job, lm_trainer *trainer);
/* Collective. Rank 0 of node 0 writes the file. The bytes depend on configuration, text, step and the number of nodes
 * alone. Returns -1 with lm_error() set; *code is an exit code after a message that has been printed. */
int train_checkpoint_save(lm_trainer *trainer, const char *path, int *code);

/* ---- Several processes that were started apart (train_agree.c) ---- */

/* Collective. Whether all processes were given the same options, text and checkpoint. 0, or the exit code after a
 * message, the same on all ranks. */
int train_agree(const train_job *job, const ferry_bootstrap bootstrap[CLI_BOOTSTRAPS]);
/* Adds bytes to a digest that began as TRAIN_DIGEST_EMPTY. */
#define TRAIN_DIGEST_EMPTY UINT64_C(0xcbf29ce484222325)
void train_digest(uint64_t *digest, const void *bytes, size_t count);

/* ---- --record-routing (train_routing.c); nothing happens without it ---- */

/* Makes room. 0, or the exit code after a message; train_routing_end frees it in both cases. */
int train_routing_begin(train_job *job);
/* On every rank, right after the last step: what the last block's router chose for the step's batch. */
void train_routing_take(const train_job *job, const lm_trainer *trainer);
/* After all ranks have ended. 0, or the exit code after a message. */
int train_routing_write(const train_job *job);
void train_routing_end(train_job *job);

/* ---- What is printed, by rank 0 of node 0 (train_report.c) ---- */

typedef struct train_progress {
    int64_t step, windows; /* of held-out text, for `held_out` */
    double loss, held_out, bytes_per_s, smallest_load, largest_load;
} train_progress;

void train_print_start(const train_job *job, const lm_trainer *trainer);
/* The bar; only on a terminal. */
void train_show_bar(const train_job *job, int64_t step, double loss);
void train_print_progress(const train_job *job, const train_progress *progress);
/* `held_out` is of all windows of the held-out text. */
void train_print_end(const train_job *job, const lm_trainer *trainer, double held_out, double seconds);
void train_print_wrote(const train_job *job, const char *path);
void train_print_sample(const train_job *job, const unsigned char *bytes, int64_t count);

#endif
