/* SPDX-License-Identifier: Apache-2.0 */
/* The language model on a GPU against the language model on the host: every operation, gradients, losses, bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/device.h"
#include "cli/launch.h"
#include "lm/dense.h"
#include "lm/error.h"
#include "lm/random.h"
#include "lm/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cli_devices gpus;

/* Tests of one thread, which has the first GPU. */
static const lm_ops *need_gpu(void) {
    if (gpus.why[0]) skip();
    return lm_ops_cuda;
}

/* ---- Operations: the same array on both sides ---- */

typedef struct pair {
    void *cpu, *gpu;
    size_t bytes;
} pair;

static pair make(size_t bytes, const void *from) {
    pair p = {malloc(bytes), lm_ops_cuda->alloc(bytes), bytes};
    assert_non_null(p.cpu);
    assert_non_null(p.gpu);
    memcpy(p.cpu, from, bytes);
    lm_ops_cuda->put(p.gpu, from, bytes);
    return p;
}

static pair make_floats(int64_t count, uint32_t purpose) {
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = lm_random_normal(7, purpose, (uint64_t)i);
    pair p = make((size_t)count * sizeof *values, values);
    free(values);
    return p;
}

/* All bits set: what is not written is seen. */
static pair make_poison(int64_t count, size_t element) {
    void *poison = malloc((size_t)count * element);
    memset(poison, 0xff, (size_t)count * element);
    pair p = make((size_t)count * element, poison);
    free(poison);
    return p;
}

static pair make_bytes(int64_t count) {
    unsigned char *bytes = malloc((size_t)count);
    for (int64_t i = 0; i < count; i++) bytes[i] = (unsigned char)lm_random_below(7, 3, (uint64_t)i / 2, LM_BYTES);
    pair p = make((size_t)count, bytes);
    free(bytes);
    return p;
}

static void drop(pair *p) {
    free(p->cpu);
    lm_ops_cuda->free(p->gpu);
}

/* Relative distance of the GPU's values from the host's, which a value that is no number makes infinite. */
static double distance(const float *a, const float *b, int64_t count) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += ((double)b[i] - (double)a[i]) * ((double)b[i] - (double)a[i]);
        size += (double)a[i] * (double)a[i];
    }
    return off >= 0 && size > 0 ? sqrt(off / size) : INFINITY;
}

static void *fetch(const pair *p) {
    void *got = malloc(p->bytes);
    assert_int_equal(lm_ops_cuda->get(got, p->gpu, p->bytes), 0);
    return got;
}

static void expect_close(const pair *p) {
    float *got = fetch(p);
    double off = distance(p->cpu, got, (int64_t)(p->bytes / sizeof(float)));
    if (!(off <= 1e-5)) fail_msg("relative distance %g", off);
    free(got);
}

static void expect_same(const pair *p) {
    void *got = fetch(p);
    assert_memory_equal(got, p->cpu, p->bytes);
    free(got);
}

/* Extents that are no multiples of tiles or warps. */
enum { PARTS = 3, ROWS = 37, WIDTH = 70, OUT = 45, EXPERTS = 10, SLOTS = 3, GAP = 20000, TOKENS = PARTS * ROWS };
static const lm_parts parts = {PARTS, ROWS, GAP};

static void test_linear(void **state) {
    (void)state;
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    pair x = make_floats(TOKENS * WIDTH, 10), w = make_floats(WIDTH * OUT, 11), y = make_poison(TOKENS * OUT, 4);
    pair dw = make_floats((PARTS - 1) * GAP + WIDTH * OUT, 12), turned = make_poison(WIDTH * OUT, 4);
    for (int add = 0; add < 2; add++) {
        cpu->linear(y.cpu, x.cpu, w.cpu, TOKENS, WIDTH, OUT, add);
        gpu->linear(y.gpu, x.gpu, w.gpu, TOKENS, WIDTH, OUT, add);
        expect_same(&y);
    }
    cpu->linear_back(dw.cpu, parts, y.cpu, x.cpu, WIDTH, OUT);
    gpu->linear_back(dw.gpu, parts, y.gpu, x.gpu, WIDTH, OUT);
    expect_same(&dw);
    cpu->transpose(turned.cpu, w.cpu, WIDTH, OUT);
    gpu->transpose(turned.gpu, w.gpu, WIDTH, OUT);
    expect_same(&turned);
    drop(&x), drop(&w), drop(&y), drop(&dw), drop(&turned);
}

static void test_embedding(void **state) {
    (void)state;
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    int64_t table_size = LM_BYTES * WIDTH;
    pair table = make_floats(table_size, 20), bytes = make_bytes(TOKENS), x = make_poison(TOKENS * WIDTH, 4);
    pair dtable = make_floats((PARTS - 1) * GAP + table_size, 21);
    cpu->embed(x.cpu, table.cpu, bytes.cpu, TOKENS, WIDTH);
    gpu->embed(x.gpu, table.gpu, bytes.gpu, TOKENS, WIDTH);
    expect_same(&x);
    cpu->embed_back(dtable.cpu, parts, x.cpu, bytes.cpu, WIDTH);
    gpu->embed_back(dtable.gpu, parts, x.gpu, bytes.gpu, WIDTH);
    expect_same(&dtable);
    drop(&table), drop(&bytes), drop(&x), drop(&dtable);
}

static void test_norm(void **state) {
    (void)state;
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    pair x = make_floats(TOKENS * WIDTH, 30), gain = make_floats(WIDTH, 31), y = make_poison(TOKENS * WIDTH, 4);
    pair scale = make_poison(TOKENS, 4), dy = make_floats(TOKENS * WIDTH, 32), dx = make_floats(TOKENS * WIDTH, 33);
    pair dgain = make_floats((PARTS - 1) * GAP + WIDTH, 34);
    cpu->norm(y.cpu, scale.cpu, x.cpu, gain.cpu, TOKENS, WIDTH);
    gpu->norm(y.gpu, scale.gpu, x.gpu, gain.gpu, TOKENS, WIDTH);
    expect_close(&y);
    expect_close(&scale);
    cpu->norm_back(dx.cpu, dgain.cpu, parts, dy.cpu, x.cpu, scale.cpu, gain.cpu, WIDTH);
    gpu->norm_back(dx.gpu, dgain.gpu, parts, dy.gpu, x.gpu, scale.gpu, gain.gpu, WIDTH);
    expect_close(&dx);
    expect_close(&dgain);
    drop(&x), drop(&gain), drop(&y), drop(&scale), drop(&dy), drop(&dx), drop(&dgain);
}

static void test_attention(void **state) {
    (void)state;
    enum { LENGTH = 41, HIDDEN = 72, HEADS = 3, SEQUENCES = 2, VALUES = SEQUENCES * LENGTH * HIDDEN };
    enum { PAIRS = SEQUENCES * HEADS * LENGTH * LENGTH, ANGLES = LENGTH * HIDDEN / HEADS / 2 };
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    lm_attention here, there;
    assert_int_equal(lm_attention_init(&here, LENGTH, HIDDEN, HEADS), 0);
    pair cosine = make(ANGLES * sizeof(float), here.cosine), sine = make(ANGLES * sizeof(float), here.sine);
    pair scratch = make_poison(PAIRS, 4), qkv = make_floats(3 * VALUES, 40), out = make_poison(VALUES, 4);
    pair p = make_poison(PAIRS, 4), dout = make_floats(VALUES, 41), dqkv = make_poison(3 * VALUES, 4);
    there = here;
    there.cosine = cosine.gpu;
    there.sine = sine.gpu;
    there.scratch = scratch.gpu;
    cpu->attend(&here, out.cpu, p.cpu, qkv.cpu, SEQUENCES);
    gpu->attend(&there, out.gpu, p.gpu, qkv.gpu, SEQUENCES);
    expect_close(&out);
    expect_close(&p);
    expect_close(&qkv);
    cpu->attend_back(&here, dqkv.cpu, dout.cpu, p.cpu, qkv.cpu, SEQUENCES);
    gpu->attend_back(&there, dqkv.gpu, dout.gpu, p.gpu, qkv.gpu, SEQUENCES);
    expect_close(&dqkv);
    lm_attention_free(&here);
    drop(&cosine), drop(&sine), drop(&scratch), drop(&qkv), drop(&out), drop(&p), drop(&dout), drop(&dqkv);
}

static void test_router(void **state) {
    (void)state;
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    const lm_router router = {EXPERTS, SLOTS};
    pair p = make_floats(TOKENS * EXPERTS, 50), ids = make_poison(TOKENS * SLOTS, 4);
    pair weights = make_poison(TOKENS * SLOTS, 4), dweights = make_floats(TOKENS * SLOTS, 51);
    pair pull = make_floats(EXPERTS, 52), dlogits = make_poison(TOKENS * EXPERTS, 4);
    pair counts = make_poison((PARTS - 1) * GAP + EXPERTS, 8), load = make_poison(EXPERTS, 8);
    float *logits = p.cpu;
    for (int e = 0; e < EXPERTS; e++) logits[e] = 1; /* the lower ids of equals */
    gpu->put(p.gpu, logits, EXPERTS * sizeof(float));
    cpu->choose(&router, p.cpu, ids.cpu, weights.cpu, TOKENS);
    gpu->choose(&router, p.gpu, ids.gpu, weights.gpu, TOKENS);
    expect_close(&p);
    expect_same(&ids);
    expect_close(&weights);
    cpu->choose_back(&router, dlogits.cpu, dweights.cpu, p.cpu, ids.cpu, weights.cpu, pull.cpu, TOKENS);
    gpu->choose_back(&router, dlogits.gpu, dweights.gpu, p.gpu, ids.gpu, weights.gpu, pull.gpu, TOKENS);
    expect_close(&dlogits);
    cpu->count(counts.cpu, parts, ids.cpu, SLOTS, EXPERTS);
    gpu->count(counts.gpu, parts, ids.gpu, SLOTS, EXPERTS);
    expect_same(&counts);
    cpu->zero(load.cpu, load.bytes);
    gpu->zero(load.gpu, load.bytes);
    for (int twice = 0; twice < 2; twice++) {
        cpu->balance(pull.cpu, load.cpu, counts.cpu, EXPERTS, 0.1, TOKENS, SLOTS);
        gpu->balance(pull.gpu, load.gpu, counts.gpu, EXPERTS, 0.1, TOKENS, SLOTS);
    }
    expect_same(&pull);
    expect_same(&load);
    drop(&p), drop(&ids), drop(&weights), drop(&dweights), drop(&pull), drop(&dlogits), drop(&counts), drop(&load);
}

static void test_cross_entropy(void **state) {
    (void)state;
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    const lm_parts few = {PARTS, ROWS, 5};
    for (int gradient = 0; gradient < 2; gradient++) {
        pair logits = make_floats(TOKENS * LM_BYTES, 60), target = make_bytes(TOKENS);
        double begin[PARTS * 5] = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3}, got[PARTS * 5];
        pair sums = make(sizeof begin, begin);
        cpu->cross_entropy(sums.cpu, few, logits.cpu, target.cpu, gradient ? 0.25f : 0);
        gpu->cross_entropy(sums.gpu, few, logits.gpu, target.gpu, gradient ? 0.25f : 0);
        expect_close(&logits);
        assert_int_equal(gpu->get(got, sums.gpu, sizeof got), 0);
        for (int i = 0; i < PARTS * 5; i++) assert_true(fabs(got[i] - ((double *)sums.cpu)[i]) <= 1e-5 * fabs(got[i]));
        assert_true(got[5] > 2 + ROWS);
        drop(&logits), drop(&target), drop(&sums);
    }
}

static void test_arrays(void **state) {
    (void)state;
    enum { COUNT = 5003, SUMS = 4 };
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    pair a = make_floats(COUNT * SUMS, 70), b = make_floats(COUNT * SUMS, 71), half = make_poison(COUNT * SUMS, 2);
    double begin[SUMS] = {1, 2, 3, 4}, got[SUMS];
    pair sums = make(sizeof begin, begin), total = make(sizeof(double), begin);
    ((float *)a.cpu)[5] = INFINITY;
    gpu->put(a.gpu, a.cpu, a.bytes);
    cpu->round(half.cpu, a.cpu, COUNT * SUMS);
    gpu->round(half.gpu, a.gpu, COUNT * SUMS);
    expect_same(&half);
    ((float *)a.cpu)[5] = 1;
    gpu->put(a.gpu, a.cpu, a.bytes);
    ((uint16_t *)half.cpu)[5] = 0x4000;
    gpu->put(half.gpu, half.cpu, half.bytes);
    cpu->add_bf16(a.cpu, b.cpu, half.cpu, COUNT * SUMS);
    gpu->add_bf16(a.gpu, b.gpu, half.gpu, COUNT * SUMS);
    cpu->add(a.cpu, b.cpu, COUNT);
    gpu->add(a.gpu, b.gpu, COUNT);
    expect_same(&a);
    cpu->square_sums(sums.cpu, a.cpu, COUNT, SUMS);
    gpu->square_sums(sums.gpu, a.gpu, COUNT, SUMS);
    assert_int_equal(gpu->get(got, sums.gpu, sizeof got), 0);
    for (int i = 0; i < SUMS; i++) assert_true(fabs(got[i] / ((double *)sums.cpu)[i] - 1) < 1e-12);
    gpu->put(sums.gpu, sums.cpu, sums.bytes);
    cpu->add_doubles(sums.cpu, sums.cpu, SUMS);
    gpu->add_doubles(sums.gpu, sums.gpu, SUMS);
    expect_same(&sums);
    cpu->add_up(total.cpu, sums.cpu, SUMS);
    gpu->add_up(total.gpu, sums.gpu, SUMS);
    expect_same(&total);
    drop(&a), drop(&b), drop(&half), drop(&sums), drop(&total);
}

static void test_adamw(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    const lm_ops *gpu = need_gpu(), *cpu = &lm_ops_cpu;
    lm_config config = lm_config_default();
    pair value = make_floats(COUNT, 80), gradient = make_floats(COUNT, 81), zeros = make_floats(COUNT, 82);
    for (int clipped = 0; clipped < 2; clipped++) {
        double squares = clipped ? 100 : 0.5;
        pair norm = make(sizeof squares, &squares);
        memset(zeros.cpu, 0, zeros.bytes);
        pair m = make(zeros.bytes, zeros.cpu), v = make(zeros.bytes, zeros.cpu);
        for (int step = 0; step < 3; step++) {
            cpu->adamw(&config, step, value.cpu, m.cpu, v.cpu, gradient.cpu, COUNT, norm.cpu, step % 2);
            gpu->adamw(&config, step, value.gpu, m.gpu, v.gpu, gradient.gpu, COUNT, norm.gpu, step % 2);
        }
        expect_close(&value);
        expect_close(&m);
        expect_close(&v);
        drop(&norm), drop(&m), drop(&v);
    }
    drop(&value), drop(&gradient), drop(&zeros);
}

/* ---- The whole model ---- */

enum { TEXT_BYTES = 6000, STEPS = 20 };

typedef struct job {
    lm_config config;
    lm_text text;
    unsigned char bytes[TEXT_BYTES];
    int (*body)(struct job *job, lm_trainer *trainer);
    double losses[STEPS + 2];
    float *state; /* rank 0: all tensors in all kinds, then the gradient; with `values` of them */
    int64_t values;
} job;

static lm_config small_config(ferry_backend backend) {
    lm_config c = lm_config_default();
    c.hidden = 48;
    c.heads = 2;
    c.intermediate = 40;
    c.length = 20;
    c.sequences = 16;
    c.warmup_steps = 5;
    c.decay_steps = STEPS;
    c.backend = backend;
    return c;
}

static int gradient_body(job *j, lm_trainer *t);

static int rank_main(void *user, const ferry_bootstrap *bootstrap, int rank) {
    job *j = user;
    ferry_comm *comm = NULL;
    lm_trainer *trainer = NULL;
    lm_config model = j->config;
    ferry_comm_config config;
    ferry_comm_config_init(&config);
    config.bootstrap = *bootstrap;
    config.backend = model.backend;
    config.device = model.device = cli_device_index(model.backend, rank);
    if (config.backend == FERRY_CPU) config.compute_workers = 1;
    config.enter_timeout_s = config.progress_timeout_s = 20;
    int bad = lm_fail_status(ferry_comm_create(&config, &comm), "creating the communicator");
    if (!bad) bad = lm_trainer_create(comm, NULL, &model, &j->text, &trainer);
    if (!bad) bad = j->body(j, trainer);
    if (bad) fprintf(stderr, "rank %d: %s\n", rank, lm_error());
    lm_trainer_destroy(trainer);
    ferry_comm_destroy(comm);
    return bad ? 1 : 0;
}

static void run(job *j, int nranks, ferry_backend backend, int (*body)(job *, lm_trainer *)) {
    cli_launch_options options = {.nranks = nranks, .timeout_s = 20};
    *j = (job){.config = small_config(backend), .body = body};
    if (body == gradient_body) j->config.slots = j->config.experts; /* no choice that a step could change */
    for (int i = 0; i < TEXT_BYTES; i++) j->bytes[i] = (unsigned char)('a' + (i * i / 7 + i) % 23);
    j->text = (lm_text){.bytes = j->bytes, .size = TEXT_BYTES, .train = TEXT_BYTES - TEXT_BYTES / 10};
    assert_int_equal(cli_launch(&options, rank_main, j), 0);
}

/* Trains, and keeps losses, and on rank 0 every parameter and moment. */
static int train_body(job *j, lm_trainer *t) {
    lm_model *m = t->model;
    double losses[STEPS + 2];
    for (int step = 0; step < STEPS; step++) {
        LM_TRY(lm_trainer_step(t));
        LM_TRY(lm_trainer_fetch(t));
        losses[step] = t->loss;
    }
    losses[STEPS] = t->gradient_norm;
    LM_TRY(lm_trainer_evaluate(t, lm_trainer_windows(t), &losses[STEPS + 1]));
    LM_TRY(lm_meet(m, "waiting"));
    if (m->rank == 0) {
        memcpy(j->losses, losses, sizeof losses);
        for (int n = 0; n < m->layout.count; n++) j->values += LM_KINDS * m->layout.tensors[n].count;
        float *to = j->state = malloc((size_t)j->values * sizeof(float));
        for (int n = 0; n < m->layout.count; n++) {
            for (int kind = 0; kind < LM_KINDS; kind++, to += m->layout.tensors[n].count)
                LM_TRY(lm_model_read(m, &m->layout.tensors[n], kind, to));
        }
    }
    return lm_meet(m, "waiting");
}

static void test_training(void **state) {
    (void)state;
    need_gpu();
    static job cpu, one, many;
    run(&cpu, 1, FERRY_CPU, train_body);
    run(&one, 1, FERRY_CUDA, train_body);
    for (int step = 0; step < STEPS + 2; step++) {
        double off = fabs(one.losses[step] / cpu.losses[step] - 1);
        if (!(off < 1e-2)) fail_msg("number %d: %g, expected %g", step, one.losses[step], cpu.losses[step]);
    }
    assert_true(one.losses[STEPS - 1] < one.losses[0] - 0.3);
    for (int nranks = 2; nranks <= 4; nranks *= 2) {
        run(&many, nranks, FERRY_CUDA, train_body);
        assert_memory_equal(many.losses, one.losses, sizeof one.losses);
        assert_int_equal(many.values, one.values);
        assert_memory_equal(many.state, one.state, (size_t)one.values * sizeof(float));
        free(many.state);
    }
    free(cpu.state);
    free(one.state);
}

/* ---- Gradients: the slope of the loss along a tensor's own gradient is the gradient's length ---- */

static int batch_loss(lm_trainer *t, double *loss) {
    lm_model *m = t->model;
    double *sums = lm_exchange_sums(t, 0), got[LM_SHARDS];
    m->ops->zero(sums, LM_SHARDS * sizeof *sums);
    LM_TRY(lm_forward(m, t->windows, m->local_sequences, 0));
    lm_loss(m, t->windows, m->local_sequences, 0, NULL, sums, 1);
    LM_TRY(m->ops->get(got, sums, sizeof got));
    *loss = 0;
    for (int shard = 0; shard < LM_SHARDS; shard++)
        *loss += got[shard] / (double)(m->local_sequences * m->config.length);
    return 0;
}

static int check_slope(lm_trainer *t, const lm_tensor *tensor, float *values, const float *gradient) {
    lm_model *m = t->model;
    size_t bytes = (size_t)tensor->count * sizeof(float);
    float *kept = malloc(bytes), *moved = malloc(bytes), *along = malloc(bytes);
    double squares = 0, slope = 0, loss;
    LM_TRY(m->ops->get(kept, values, bytes));
    LM_TRY(m->ops->get(along, gradient, bytes));
    for (int64_t i = 0; i < tensor->count; i++) squares += (double)along[i] * (double)along[i];
    double length = sqrt(squares), step = 0.001 / length;
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < tensor->count; i++)
            moved[i] = kept[i] + (float)(side * step * (double)along[i] / length);
        m->ops->put(values, moved, bytes);
        lm_model_refresh(m);
        LM_TRY(batch_loss(t, &loss));
        slope += side * loss / (2 * step);
    }
    m->ops->put(values, kept, bytes);
    lm_model_refresh(m);
    LM_TRY(m->ops->wait());
    free(kept), free(moved), free(along);
    double off = fabs(slope / length - 1);
    return off <= 0.03 ? 0 : lm_fail("%s: the slope is off by %.3f", tensor->name, off);
}

static int gradient_body(job *j, lm_trainer *t) {
    lm_model *m = t->model;
    size_t dense_bytes = (size_t)m->layout.dense * sizeof(float);
    for (int step = 0; step < 5; step++) LM_TRY(lm_trainer_step(t)); /* away from the symmetric beginning */
    for (int64_t s = 0; s < m->local_sequences; s++)
        t->windows[s] = lm_text_sample(&j->text, 5, 0, s, m->local_sequences, m->config.length);
    float *dense = t->gradients.mine, scale = 1.0f / (float)(m->local_sequences * m->config.length);
    m->ops->zero(dense, (size_t)m->local_shards * dense_bytes);
    m->ops->zero(t->pull, (size_t)(m->config.layers * m->config.experts) * sizeof(float));
    LM_TRY(lm_forward(m, t->windows, m->local_sequences, 1));
    lm_loss(m, t->windows, m->local_sequences, scale, dense, lm_exchange_sums(t, 0), lm_exchange_stride(t));
    LM_TRY(lm_backward(m, dense, t->expert_gradient, t->pull));
    for (int64_t shard = 1; shard < m->local_shards; shard++)
        m->ops->add(dense, dense + shard * m->layout.dense, m->layout.dense);
    for (int n = 0; n < m->layout.count; n++) {
        const lm_tensor *tensor = &m->layout.tensors[n];
        int64_t at = tensor->expert ? lm_expert_offset(tensor, m->local_experts) : tensor->offset;
        float *values = (tensor->expert ? lm_experts(m, LM_VALUE) : m->dense[LM_VALUE]) + at;
        LM_TRY(check_slope(t, tensor, values, (tensor->expert ? t->expert_gradient : dense) + at));
    }
    return 0;
}

static void test_gradients(void **state) {
    (void)state;
    need_gpu();
    static job j;
    run(&j, 1, FERRY_CUDA, gradient_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),    cmocka_unit_test(test_embedding), cmocka_unit_test(test_norm),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_router),    cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_arrays),    cmocka_unit_test(test_adamw),     cmocka_unit_test(test_training),
        cmocka_unit_test(test_gradients),
    };
    if (!cli_devices_find(FERRY_CUDA, &gpus)) {
        printf("skipped: %s\n", gpus.why);
    } else if (lm_ops_cuda->open(0)) {
        fprintf(stderr, "%s\n", lm_error());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!gpus.why[0]) lm_ops_cuda->close();
    return failed;
}
