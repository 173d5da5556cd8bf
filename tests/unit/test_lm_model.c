/* SPDX-License-Identifier: Apache-2.0 */
/* The whole model over the real layer, in small: gradients, causality, the same bits on any number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/launch.h"
#include "lm/error.h"
#include "lm/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 4000 };

static lm_config small_config(void) {
    lm_config c = lm_config_default();
    c.hidden = 24;
    c.layers = 2;
    c.heads = 2;
    c.intermediate = 20;
    c.length = 12;
    c.sequences = 16;
    c.warmup_steps = 2;
    c.decay_steps = 6;
    return c;
}

/* A text whose next byte can be learned from the one before. */
static void make_text(lm_text *text, unsigned char *bytes) {
    for (int i = 0; i < TEXT_BYTES; i++) bytes[i] = (unsigned char)('a' + (i * i / 7 + i) % 23);
    *text = (lm_text){.bytes = bytes, .size = TEXT_BYTES, .train = TEXT_BYTES - TEXT_BYTES / 10};
}

typedef struct job {
    lm_config config;
    lm_text text;
    unsigned char bytes[TEXT_BYTES];
    int (*body)(struct job *job, lm_trainer *trainer);
    float *state;   /* rank 0: all tensors in all kinds */
    int64_t values; /* in it */
    double losses[8];
    unsigned char sample[40];
    double largest_load;
} job;

static int rank_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    job *j = user;
    ferry_comm *comm = NULL;
    lm_trainer *trainer = NULL;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.bootstrap = *bootstrap;
    config.compute_workers = 1;
    int bad = lm_fail_status(ferry_comm_create(&config, &comm), "creating the communicator");
    if (!bad) bad = lm_trainer_create(comm, NULL, &j->config, &j->text, &trainer);
    if (!bad) bad = j->body(j, trainer);
    if (bad) fprintf(stderr, "rank %d: %s\n", rank, lm_error());
    lm_trainer_destroy(trainer);
    ferry_comm_destroy(comm);
    return bad ? 1 : 0;
}

static void run(job *j, int nranks, int (*body)(job *, lm_trainer *)) {
    cli_launch_options options = {.nranks = nranks, .timeout_s = 60};
    make_text(&j->text, j->bytes);
    j->body = body;
    assert_int_equal(cli_launch(&options, rank_main, j), 0);
}

/* ---- Gradients ---- */

static unsigned char windows_of_batch[16][13];

static double batch_loss(lm_trainer *t, int *bad) {
    double loss = 0;
    lm_model *m = t->model;
    *bad |= lm_forward(m, t->windows, m->local_sequences, 0);
    lm_loss(m, t->windows, m->local_sequences, 0, NULL, &loss, 0);
    return loss / (double)(m->local_sequences * m->config.length);
}

/* The slope of the loss along a tensor's own gradient must be the gradient's length. */
static double slope_error(lm_trainer *t, float *values, const float *gradient, int64_t count, int *bad) {
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += (double)gradient[i] * (double)gradient[i];
    double length = sqrt(squares), step = 0.001 / length, slope = 0;
    float *kept = malloc((size_t)count * sizeof(float));
    memcpy(kept, values, (size_t)count * sizeof(float));
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < count; i++) values[i] = kept[i] + (float)(side * step * (double)gradient[i] / length);
        lm_model_refresh(t->model);
        slope += side * batch_loss(t, bad) / (2 * step);
    }
    memcpy(values, kept, (size_t)count * sizeof(float));
    free(kept);
    lm_model_refresh(t->model);
    return fabs(slope / length - 1);
}

static int gradient_body(job *j, lm_trainer *t) {
    lm_model *m = t->model;
    int bad = 0;
    float scale = 1.0f / (float)(m->local_sequences * m->config.length);
    for (int step = 0; step < 5; step++) LM_TRY(lm_trainer_step(t)); /* away from the symmetric beginning */
    for (int64_t s = 0; s < m->local_sequences; s++) {
        memcpy(windows_of_batch[s], lm_text_sample(&j->text, 5, 0, s, 16, 12), 13);
        t->windows[s] = windows_of_batch[s];
    }
    float *dense = calloc((size_t)(m->local_shards * m->layout.dense), sizeof(float));
    memset(t->pull, 0, (size_t)(m->config.layers * m->config.experts) * sizeof(float));
    LM_TRY(lm_forward(m, t->windows, m->local_sequences, 1));
    double loss = 0;
    lm_loss(m, t->windows, m->local_sequences, scale, dense, &loss, 0);
    LM_TRY(lm_backward(m, dense, t->expert_gradient, t->pull));
    for (int64_t shard = 1; shard < m->local_shards; shard++) {
        for (int64_t i = 0; i < m->layout.dense; i++) dense[i] += dense[shard * m->layout.dense + i];
    }
    for (int n = 0; n < m->layout.count; n++) {
        const lm_tensor *tensor = &m->layout.tensors[n];
        int64_t at = tensor->expert ? lm_expert_offset(tensor, m->local_experts) : tensor->offset;
        float *values = (tensor->expert ? lm_experts(m, LM_VALUE) : m->dense[LM_VALUE]) + at;
        double error = slope_error(t, values, (tensor->expert ? t->expert_gradient : dense) + at, tensor->count, &bad);
        if (!(error <= 0.03)) bad = lm_fail("%s: the slope is off by %.3f", tensor->name, error);
    }
    free(dense);
    return bad;
}

static void test_gradients(void **state) {
    (void)state;
    job j = {.config = small_config()};
    j.config.slots = j.config.experts; /* no choice that a step could change */
    run(&j, 1, gradient_body);
}

static double square_sum(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* After the first step the first moments are 1 - beta1 times the gradient, clipped by the norm of all of it. */
static int clip_body(job *j, lm_trainer *t) {
    const lm_model *m = t->model;
    int64_t experts = m->local_experts * m->layout.per_expert;
    LM_TRY(lm_trainer_step(t));
    double norm = sqrt(square_sum(t->dense_gradient, m->layout.dense) + square_sum(t->expert_gradient, experts));
    double moment =
        sqrt(square_sum(m->dense[LM_MOMENT1], m->layout.dense) + square_sum(lm_experts(m, LM_MOMENT1), experts)) /
        (1 - j->config.beta1);
    double wanted = norm < j->config.clip ? norm : j->config.clip;
    if (!(fabs(t->gradient_norm / norm - 1) < 1e-6))
        return lm_fail("gradient norm %g, expected %g", t->gradient_norm, norm);
    return fabs(moment / wanted - 1) < 1e-4 ? 0 : lm_fail("clipped to %g, expected %g", moment, wanted);
}

static void test_clip(void **state) {
    (void)state;
    for (int clipped = 0; clipped < 2; clipped++) {
        job j = {.config = small_config()};
        j.config.clip = clipped ? 0.01 : 100;
        run(&j, 1, clip_body);
    }
}

/* ---- Layout ---- */

static void test_layout(void **state) {
    (void)state;
    lm_config c = small_config();
    lm_layout layout;
    int64_t dense = 0, per_expert = 0;
    assert_int_equal(lm_layout_init(&layout, &c), 0);
    assert_int_equal(layout.count, 3 + c.layers * (LM_BLOCK_TENSORS + LM_EXPERT_TENSORS));
    for (int n = 0; n < layout.count; n++) {
        const lm_tensor *t = &layout.tensors[n];
        assert_int_equal(t->expert, n >= layout.dense_count);
        assert_int_equal(t->offset, t->expert ? per_expert : dense);
        assert_int_equal(t->decays, t->dims > 1); /* gains of norms are left alone */
        assert_int_equal(t->dims == 1, strstr(t->name, "norm") != NULL);
        *(t->expert ? &per_expert : &dense) += t->expert ? t->count / c.experts : t->count;
    }
    assert_int_equal(dense, layout.dense);
    assert_int_equal(per_expert, layout.per_expert);
    assert_string_equal(lm_head(&layout)->name, "head");
    assert_string_equal(lm_final_norm(&layout)->name, "final_norm");
    assert_string_equal(lm_block_tensor(&layout, 1, LM_ROUTER)->name, "blocks.1.router");
    assert_string_equal(lm_expert_tensor(&layout, 1, LM_DOWN)->name, "blocks.1.experts.down");
    lm_layout_free(&layout);
}

/* ---- The same bits on any number of ranks ---- */

static int train_body(job *j, lm_trainer *t) {
    lm_model *m = t->model;
    double losses[8];
    unsigned char sample[40];
    for (int step = 0; step < 6; step++) {
        LM_TRY(lm_trainer_step(t));
        losses[step] = t->loss;
    }
    losses[6] = t->gradient_norm;
    LM_TRY(lm_trainer_evaluate(t, lm_trainer_windows(t), &losses[7]));
    LM_TRY(lm_sample(m, (const unsigned char *)"abc", 3, 0.9, sizeof sample, sample));
    LM_TRY(lm_fail_status(ferry_barrier(m->comm), "waiting"));
    if (m->rank == 0) {
        memcpy(j->losses, losses, sizeof losses);
        memcpy(j->sample, sample, sizeof sample);
        j->values = 0;
        for (int n = 0; n < m->layout.count; n++) j->values += LM_KINDS * m->layout.tensors[n].count;
        j->state = malloc((size_t)j->values * sizeof(float));
        float *to = j->state;
        for (int n = 0; n < m->layout.count; n++) {
            for (int kind = 0; kind < LM_KINDS; kind++, to += m->layout.tensors[n].count)
                LM_TRY(lm_model_read(m, &m->layout.tensors[n], kind, to));
        }
    }
    return lm_fail_status(ferry_barrier(m->comm), "waiting");
}

static void test_any_ranks(void **state) {
    (void)state;
    job one = {.config = small_config()};
    run(&one, 1, train_body);
    assert_true(one.losses[5] < one.losses[0]);
    for (int nranks = 2; nranks <= LM_SHARDS; nranks *= 2) {
        job many = {.config = small_config()};
        run(&many, nranks, train_body);
        assert_memory_equal(many.losses, one.losses, sizeof one.losses);
        assert_memory_equal(many.sample, one.sample, sizeof one.sample);
        assert_int_equal(many.values, one.values);
        assert_memory_equal(many.state, one.state, (size_t)one.values * sizeof(float));
        free(many.state);
    }
    job other = {.config = small_config()};
    other.config.seed = 2;
    run(&other, 1, train_body);
    assert_memory_not_equal(other.state, one.state, (size_t)one.values * sizeof(float));
    free(other.state);
    free(one.state);
}

/* ---- Causality ---- */

static int causal_body(job *j, lm_trainer *t) {
    (void)j;
    lm_model *m = t->model;
    unsigned char window[12] = "hello, world";
    const unsigned char *windows[1] = {window};
    static float before[12 * LM_BYTES];
    LM_TRY(lm_forward(m, windows, 1, 0));
    memcpy(before, lm_logits(m, 0), sizeof before);
    window[7] = 'W';
    LM_TRY(lm_forward(m, windows, 1, 0));
    const float *after = lm_logits(m, 0);
    if (memcmp(before, after, 7 * LM_BYTES * sizeof(float)) != 0) return lm_fail("a byte changed what came before it");
    if (memcmp(before + 7 * LM_BYTES, after + 7 * LM_BYTES, LM_BYTES * sizeof(float)) == 0)
        return lm_fail("a byte changed nothing");
    return 0;
}

static void test_causal(void **state) {
    (void)state;
    job j = {.config = small_config()};
    run(&j, 1, causal_body);
}

/* ---- Samples ---- */

/* At a temperature near 0 every byte is the best one after the last `length` bytes before it. */
static int sample_body(job *j, lm_trainer *t) {
    (void)j;
    lm_model *m = t->model;
    unsigned char bytes[3 + 30] = "abc", window[12];
    const unsigned char *windows[1] = {window};
    for (int step = 0; step < 6; step++) LM_TRY(lm_trainer_step(t));
    LM_TRY(lm_sample(m, bytes, 3, 1e-4, 30, bytes + 3));
    for (int at = 3; at < 33; at++) {
        int known = at < 12 ? at : 12, best = 0;
        memset(window, 0, sizeof window);
        memcpy(window, bytes + at - known, (size_t)known);
        LM_TRY(lm_forward(m, windows, 1, 0));
        const float *logits = lm_logits(m, 0) + (known - 1) * LM_BYTES;
        for (int i = 1; i < LM_BYTES; i++) best = logits[i] > logits[best] ? i : best;
        if (bytes[at] != best) return lm_fail("byte %d of the sample is %d, expected %d", at, bytes[at], best);
    }
    return 0;
}

static void test_sample(void **state) {
    (void)state;
    job j = {.config = small_config()};
    run(&j, 1, sample_body);
}

/* ---- The load-balancing term ---- */

static int balance_body(job *j, lm_trainer *t) {
    double smallest, largest;
    for (int step = 0; step < 60; step++) {
        if (step == 50) lm_trainer_take_load(t, &smallest, &largest);
        LM_TRY(lm_trainer_step(t));
    }
    lm_trainer_take_load(t, &smallest, &largest);
    j->largest_load = largest;
    return 0;
}

static void test_balance(void **state) {
    (void)state;
    double largest[2];
    for (int strong = 0; strong < 2; strong++) {
        job j = {.config = small_config()};
        j.config.decay_steps = 60;
        j.config.balance = strong ? 1.0 : 0.0;
        run(&j, 1, balance_body);
        largest[strong] = j.largest_load;
    }
    assert_true(largest[1] < 0.2);
    assert_true(largest[1] < largest[0]);
}

/* ---- Text ---- */

static void write_text(const char *path, const char *piece, int times) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < times; i++) fputs(piece, file);
    fclose(file);
}

static void test_text(void **state) {
    (void)state;
    char path[] = "/tmp/ferry-text-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *stream = fdopen(file, "wb");
    fclose(stream);
    lm_text text;
    write_text(path, "abcd", 500);
    assert_int_equal(lm_text_load(&text, path, 3, 64), 0);
    assert_int_equal(text.size, 2000);
    assert_int_equal(text.train, 1800);
    assert_int_equal(lm_text_windows(&text, 64), 3);
    assert_true(text.bigram_entropy == 0);
    for (int64_t s = 0; s < 200; s++) {
        const unsigned char *window = lm_text_sample(&text, 1, s, s % 8, 8, 64);
        assert_true(window >= text.bytes && window + 65 <= text.bytes + text.train);
    }
    assert_true(lm_text_window(&text, 2, 64) + 65 <= text.bytes + text.size);
    lm_text_free(&text);
    assert_int_equal(lm_text_load(&text, path, 4, 64), -1);
    assert_non_null(strstr(lm_error(), "too short"));
    /* After an a: b or c, equally often; everything else is certain. A third of the bytes are a. */
    write_text(path, "abzacz", 1000);
    assert_int_equal(lm_text_load(&text, path, 3, 64), 0);
    assert_true(fabs(text.bigram_entropy - log(2) / 3) < 1e-3);
    lm_text_free(&text);
    remove(path);
    assert_int_equal(lm_text_load(&text, path, 3, 64), -1);
    assert_non_null(strstr(lm_error(), path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),    cmocka_unit_test(test_gradients), cmocka_unit_test(test_clip),
        cmocka_unit_test(test_any_ranks), cmocka_unit_test(test_causal),    cmocka_unit_test(test_sample),
        cmocka_unit_test(test_balance),   cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
