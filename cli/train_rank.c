/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a training: the same steps on every rank; rank 0 of node 0 does the talking. */
#include "cli/clock.h"
#include "cli/device.h"
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/train.h"
#include "lm/error.h"

#include <stdlib.h>

/* Reports come every REPORT_STEPS steps, in short trainings ten times; the held-out loss in them is that of
 * REPORT_BATCHES batches. */
enum { REPORT_STEPS = 50, REPORT_BATCHES = 4, MOST_WORKERS = 4 };

static int talks(const lm_trainer *trainer) { return trainer->model->rank == 0 && trainer->model->node == 0; }

static int64_t report_windows(const lm_trainer *trainer) {
    int64_t all = lm_trainer_windows(trainer), some = REPORT_BATCHES * trainer->model->config.sequences;
    return some < all ? some : all;
}

static int report(const train_job *job, lm_trainer *trainer, int64_t steps, double seconds) {
    const lm_config *c = &job->config;
    train_progress progress = {.step = trainer->step, .windows = report_windows(trainer), .loss = trainer->loss};
    if (lm_trainer_evaluate(trainer, progress.windows, &progress.held_out)) return -1;
    if (lm_trainer_take_load(trainer, &progress.smallest_load, &progress.largest_load)) return -1;
    progress.bytes_per_s = (double)(steps * c->sequences * c->length) / seconds;
    if (talks(trainer)) train_print_progress(job, &progress);
    return 0;
}

/* Returns -1 with lm_error() set; *code is an exit code after a message that has been printed. */
static int run_steps(const train_job *job, lm_trainer *trainer, int *code) {
    int64_t last = job->options.steps, steps = last - trainer->step, save_every = job->options.save_every;
    int64_t every = steps >= 10 * REPORT_STEPS ? REPORT_STEPS : (steps + 9) / 10, reported = trainer->step;
    double begin = cli_now_s();
    while (trainer->step < last) {
        if (lm_trainer_step(trainer)) return -1;
        if (trainer->step == last) train_routing_take(job, trainer);
        if (talks(trainer)) train_show_bar(job, trainer->step, trainer->loss);
        if (trainer->step % every == 0 || trainer->step == last) {
            if (lm_trainer_fetch(trainer)) return -1;
            if (report(job, trainer, trainer->step - reported, cli_now_s() - begin)) return -1;
            reported = trainer->step;
            begin = cli_now_s();
        }
        if (save_every > 0 && trainer->step % save_every == 0 && trainer->step != last) {
            LM_TRY(train_checkpoint_save(trainer, job->options.save, code));
            if (*code) return 0;
        }
    }
    return 0;
}

static int sample(const train_job *job, lm_trainer *trainer) {
    int64_t count = job->options.sample;
    unsigned char *bytes = malloc((size_t)count);
    int bad = bytes ? lm_sample(trainer->model, (const unsigned char *)"\n", 1, job->options.temperature, count, bytes)
                    : lm_fail("no memory for a sample of %lld bytes", (long long)count);
    if (!bad && talks(trainer)) train_print_sample(job, bytes, count);
    free(bytes);
    return bad;
}

/* Returns as run_steps does. */
static int train(const train_job *job, ferry_comm *comm, int device, const ferry_bootstrap *across,
                 lm_trainer **trainer, int *code) {
    double begin = cli_now_s(), held_out;
    lm_config config = job->config;
    config.device = device;
    LM_TRY(lm_trainer_create(comm, across, &config, &job->text, trainer));
    lm_trainer *t = *trainer;
    if (job->checkpoint) train_checkpoint_restore(job, t);
    if (talks(t)) train_print_start(job, t);
    LM_TRY(run_steps(job, t, code));
    if (*code) return 0;
    LM_TRY(lm_trainer_evaluate(t, lm_trainer_windows(t), &held_out));
    if (talks(t)) train_print_end(job, t, held_out, cli_now_s() - begin);
    if (job->options.save) LM_TRY(train_checkpoint_save(t, job->options.save, code));
    if (job->options.save && !*code && talks(t)) train_print_wrote(job, job->options.save);
    if (job->options.sample && !*code) LM_TRY(sample(job, t));
    if (!*code) lm_outer_finish(t->outer);
    return 0;
}

int train_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    const train_job *job = user;
    const ferry_bootstrap *across = &bootstrap[CLI_ACROSS];
    int machine_ranks = job->mpi ? job->machine_ranks : bootstrap[CLI_NODE].nranks * across->nranks;
    int workers = machine_processors() / machine_ranks, code = CLI_OK;
    ferry_comm *comm = NULL;
    lm_trainer *trainer = NULL;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.bootstrap = bootstrap[CLI_NODE];
    config.backend = (ferry_backend)job->options.backend;
    config.device = cli_device_index(config.backend, job->mpi ? job->machine_rank : rank);
    if (config.backend == FERRY_CPU) {
        config.comm_workers = 1;
        config.compute_workers = workers < 1 ? 1 : workers > MOST_WORKERS ? MOST_WORKERS : workers;
    }
    config.enter_timeout_s = config.progress_timeout_s = job->options.timeout_s;
    if (lm_fail_status(ferry_comm_create(&config, &comm), "creating the communicator") ||
        train(job, comm, config.device, across, &trainer, &code))
        code = cli_fail("rank %d: %s", rank, lm_error());
    lm_trainer_destroy(trainer);
    ferry_comm_destroy(comm);
    return code;
}
