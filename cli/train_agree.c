/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that were started apart may have been given different files; that is found before the first step. */
#include "cli/message.h"
#include "cli/train.h"

enum { MOST_RANKS = 128 }; /* of a bootstrap */

void train_digest(uint64_t *digest, const void *bytes, size_t count) {
    const unsigned char *b = bytes;
    for (size_t i = 0; i < count; i++) *digest = (*digest ^ b[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
}

static void add_number(uint64_t *digest, int64_t number) { train_digest(digest, &number, sizeof number); }

/* Of everything that decides what a rank computes and which collective calls it makes. */
static uint64_t digest_of(const train_job *job) {
    const train_options *o = &job->options;
    const lm_config *c = &job->config;
    uint64_t digest = TRAIN_DIGEST_EMPTY;
    add_number(&digest, ferry_version_number());
    add_number(&digest, (int64_t)c->seed);
    add_number(&digest, c->decay_steps);
    add_number(&digest, o->backend);
    add_number(&digest, o->steps);
    add_number(&digest, o->save ? o->save_every : -1);
    add_number(&digest, o->sample);
    add_number(&digest, job->first_step);
    train_digest(&digest, job->text.bytes, (size_t)job->text.size);
    for (size_t i = 0; job->checkpoint && i < safetensors_count(job->checkpoint); i++) {
        const safetensors_tensor *tensor = safetensors_at(job->checkpoint, i);
        train_digest(&digest, tensor->data, tensor->bytes);
    }
    return digest;
}

int train_agree(const train_job *job, const ferry_bootstrap bootstrap[CLI_BOOTSTRAPS]) {
    uint64_t mine = digest_of(job), all[2 * MOST_RANKS], differ = 0;
    /* Within the node, then what each node found across nodes: in the end everybody knows of any difference. */
    for (int round = 0; round < 2; round++) {
        const ferry_bootstrap *group = &bootstrap[round ? CLI_ACROSS : CLI_NODE];
        uint64_t said[2] = {mine, differ};
        if (group->nranks > MOST_RANKS) return cli_fail("%d ranks, expected at most %d", group->nranks, MOST_RANKS);
        if (group->allgather(group->user, said, all, sizeof said)) return cli_fail("%s", ferry_last_error());
        for (int r = 0; r < group->nranks; r++) differ |= all[2 * r] != mine || all[2 * r + 1];
    }
    if (!differ) return CLI_OK;
    return cli_fail("the processes of this job have different options, texts or checkpoints; every machine needs the "
                    "same files");
}
