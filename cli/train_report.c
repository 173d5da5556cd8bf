/* SPDX-License-Identifier: Apache-2.0 */
/* What a training prints: lines for people, or one JSON object per line; the bar goes to a terminal only. */
#include "cli/message.h"
#include "cli/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* How far below the bigram entropy the held-out loss has to be after the steps of the default training, or more. */
#define WANTED_BELOW 0.25

enum { BAR_WIDTH = 30 };

static int has_bar(const train_job *job) { return !job->options.json && isatty(STDERR_FILENO); }

static void clear_bar(const train_job *job) {
    if (has_bar(job)) fputs("\r\033[K", stderr);
}

static int64_t parameter_count(const lm_trainer *trainer) {
    return trainer->model->layout.dense + trainer->model->layout.per_expert * trainer->model->config.experts;
}

void train_print_start(const train_job *job, const lm_trainer *trainer) {
    const train_options *o = &job->options;
    const char *mode = job->mpi ? "MPI processes" : o->processes ? "processes" : "threads";
    char nodes[128] = "";
    int other_text = train_checkpoint_other_text(job);
    if (o->nodes > 1)
        snprintf(nodes, sizeof nodes, " of each of %" PRId64 " nodes, joined through %s", o->nodes,
                 lm_outer_way(trainer->outer));
    if (o->json) {
        cli_print_json(json_pack("{s:s,s:I,s:I,s:s,s:I,s:s,s:I,s:I,s:I,s:f,s:b}", "event", "start", "parameters",
                                 (json_int_t)parameter_count(trainer), "nodes", (json_int_t)o->nodes, "across",
                                 lm_outer_way(trainer->outer), "ranks", (json_int_t)o->ranks, "mode", mode, "seed",
                                 (json_int_t)job->config.seed, "step", (json_int_t)trainer->step, "text_bytes",
                                 (json_int_t)job->text.size, "bigram_entropy", job->text.bigram_entropy, "other_text",
                                 other_text));
        return;
    }
    if (other_text) printf("%s was trained on another text; the training goes on with this one\n", o->resume);
    printf("%" PRId64 " parameters on %" PRId64 " ranks%s (%s); text of %" PRId64 " bytes, %" PRId64
           " of them held out; from step %" PRId64 " to %" PRId64 "\n",
           parameter_count(trainer), o->ranks, nodes, mode, job->text.size, job->text.size - job->text.train,
           trainer->step, o->steps);
    fflush(stdout);
}

void train_show_bar(const train_job *job, int64_t step, double loss) {
    if (!has_bar(job)) return;
    int64_t all = job->options.steps - job->first_step;
    int filled = (int)((step - job->first_step) * BAR_WIDTH / all);
    fprintf(stderr, "\r[%.*s%*s] %" PRId64 "/%" PRId64 "  loss %.4f", filled, "##############################",
            BAR_WIDTH - filled, "", step, job->options.steps, loss);
}

void train_print_progress(const train_job *job, const train_progress *p) {
    double mean = 1.0 / (double)job->config.experts;
    if (job->options.json) {
        cli_print_json(json_pack("{s:s,s:I,s:f,s:f,s:I,s:f,s:{s:f,s:f,s:f}}", "event", "progress", "step",
                                 (json_int_t)p->step, "loss", p->loss, "held_out_loss", p->held_out, "held_out_windows",
                                 (json_int_t)p->windows, "tokens_per_second", p->bytes_per_s, "expert_load", "min",
                                 p->smallest_load, "mean", mean, "max", p->largest_load));
        return;
    }
    clear_bar(job);
    printf("step %6" PRId64 "  loss %.6f  held-out sample %.6f  %8.0f tokens/s"
           "  expert load %.3f / %.3f / %.3f (min / mean / max share)\n",
           p->step, p->loss, p->held_out, p->bytes_per_s, p->smallest_load, mean, p->largest_load);
    fflush(stdout);
}

void train_print_end(const train_job *job, const lm_trainer *trainer, double held_out, double seconds) {
    int64_t step = trainer->step, windows = lm_trainer_windows(trainer);
    double entropy = job->text.bigram_entropy, below = entropy - held_out;
    int reached = below >= WANTED_BELOW;
    if (job->options.json) {
        cli_print_json(json_pack("{s:s,s:I,s:f,s:I,s:f,s:f,s:b,s:f}", "event", "end", "step", (json_int_t)step,
                                 "held_out_loss", held_out, "held_out_windows", (json_int_t)windows, "bigram_entropy",
                                 entropy, "below", below, "reached", reached, "seconds", seconds));
        return;
    }
    clear_bar(job);
    printf("held-out loss (all %" PRId64 " windows) %.6f, bigram entropy of the text %.6f, in nats per byte", windows,
           held_out, entropy);
    if (step >= lm_config_default().decay_steps)
        printf("; at least %.2f below it: %s", WANTED_BELOW, reached ? "ok" : "not reached");
    printf("\n%.1f s\n", seconds);
    fflush(stdout);
}

void train_print_wrote(const train_job *job, const char *path) {
    if (job->options.json) return;
    printf("wrote %s\n", path);
    fflush(stdout);
}

/* JSON text is UTF-8; a sample that is not has its bytes above 127 shown as '?'. */
static json_t *sample_text(const unsigned char *bytes, int64_t count) {
    json_t *text = json_stringn((const char *)bytes, (size_t)count);
    char *plain = text ? NULL : malloc((size_t)count);
    if (!plain) return text;
    for (int64_t i = 0; i < count; i++) plain[i] = (char)(bytes[i] < 128 ? bytes[i] : '?');
    text = json_stringn(plain, (size_t)count);
    free(plain);
    return text;
}

/* Bytes of the character that begins there. 0: it is no UTF-8, or a control character but an end of line or a tab. */
static int64_t character_bytes(const unsigned char *c, int64_t left) {
    if (*c < 0x80) return (*c >= ' ' && *c < 0x7f) || *c == '\n' || *c == '\t';
    int64_t length = *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4;
    if (length > left || (c[0] == 0xc2 && c[1] < 0xa0)) return 0; /* U+0080 to U+009F are control characters too */
    json_t *text = json_stringn((const char *)c, (size_t)length);
    int good = text != NULL;
    json_decref(text);
    return good ? length : 0;
}

/* To a terminal some of the bytes would be commands, and others nothing: those are shown as '?'. */
static void show_sample(const unsigned char *bytes, int64_t count) {
    for (int64_t i = 0; i < count;) {
        int64_t length = character_bytes(bytes + i, count - i);
        if (length)
            fwrite(bytes + i, 1, (size_t)length, stdout);
        else
            fputc('?', stdout);
        i += length ? length : 1;
    }
}

void train_print_sample(const train_job *job, const unsigned char *bytes, int64_t count) {
    if (job->options.json) {
        cli_print_json(json_pack("{s:s,s:o}", "event", "sample", "text", sample_text(bytes, count)));
        return;
    }
    if (isatty(STDOUT_FILENO))
        show_sample(bytes, count);
    else
        fwrite(bytes, 1, (size_t)count, stdout);
    fputc('\n', stdout);
    fflush(stdout);
}
