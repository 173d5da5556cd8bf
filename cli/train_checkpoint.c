/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: every parameter with its two moments, experts in the order of their ids, and as metadata the whole
 * configuration, a digest of the text and the number of steps done. Nothing of ranks, machines or time, and random
 * numbers have no state but the seed: equal trainings give equal files, and one continues on any number of ranks.
 */
#include "cli/train.h"

#include "cli/message.h"
#include "lm/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "ferry-language-model-1"

/* The configuration in files. The chosen ones are the file's to say; the others must be what this build has. */
#define CONFIG_INTEGERS(X)                                                                                             \
    X(hidden, 0)                                                                                                       \
    X(layers, 0)                                                                                                       \
    X(heads, 0)                                                                                                        \
    X(experts, 0)                                                                                                      \
    X(slots, 0)                                                                                                        \
    X(intermediate, 0)                                                                                                 \
    X(length, 0)                                                                                                       \
    X(sequences, 0)                                                                                                    \
    X(warmup_steps, 0)                                                                                                 \
    X(decay_steps, 1)                                                                                                  \
    X(seed, 1)
#define CONFIG_REALS(X) X(learning_rate) X(floor) X(beta1) X(beta2) X(weight_decay) X(clip) X(balance)

enum { VALUE_BYTES = 40, MAX_PAIRS = 32 };

static const char *const kind_prefix[LM_KINDS] = {"", "adam.moment1.", "adam.moment2."};

typedef struct tensor_name {
    char text[LM_NAME + 16];
} tensor_name;

static tensor_name name_of(const lm_tensor *tensor, int kind) {
    tensor_name name;
    snprintf(name.text, sizeof name.text, "%s%s", kind_prefix[kind], tensor->name);
    return name;
}

/* ---- Metadata ---- */

typedef struct metadata {
    safetensors_pair pairs[MAX_PAIRS];
    char values[MAX_PAIRS][VALUE_BYTES];
    size_t count;
} metadata;

static void put(metadata *m, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void put(metadata *m, const char *key, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->values[m->count], VALUE_BYTES, format, arguments);
    va_end(arguments);
    m->pairs[m->count] = (safetensors_pair){.key = key, .value = m->values[m->count]};
    m->count++;
}

static void digest_of_text(const lm_text *text, char to[VALUE_BYTES]) {
    uint64_t digest = TRAIN_DIGEST_EMPTY;
    train_digest(&digest, text->bytes, (size_t)text->size);
    snprintf(to, VALUE_BYTES, "%016" PRIx64, digest);
}

static void describe(metadata *m, const lm_config *config, int64_t step) {
    m->count = 0;
    put(m, "format", "%s", FORMAT);
    put(m, "step", "%" PRId64, step);
#define PUT_INTEGER(name, chosen) put(m, #name, "%" PRId64, (int64_t)config->name);
    CONFIG_INTEGERS(PUT_INTEGER)
#undef PUT_INTEGER
#define PUT_REAL(name) put(m, #name, "%.17g", config->name);
    CONFIG_REALS(PUT_REAL)
#undef PUT_REAL
}

int train_checkpoint_is(const safetensors_file *file) {
    const char *format = safetensors_metadata(file, "format");
    return format && strcmp(format, FORMAT) == 0;
}

/* A whole number >= 0 that the file must have. */
static int read_integer(const train_job *job, const char *key, int64_t *value) {
    const char *text = safetensors_metadata(job->checkpoint, key);
    if (!text) return cli_fail("%s is not a checkpoint of this program: it has no '%s'", job->options.resume, key);
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < 0)
        return cli_fail("%s: '%s' is '%s', expected a whole number", job->options.resume, key, text);
    *value = number;
    return 0;
}

/* Seed, schedule and step are the file's; an option that contradicts it is an error, since the training would not be
 * the one that the file belongs to. */
static int take_choices(train_job *job) {
    const train_options *o = &job->options;
    int64_t seed, decay;
    if (read_integer(job, "step", &job->first_step) || read_integer(job, "seed", &seed) ||
        read_integer(job, "decay_steps", &decay))
        return CLI_FAILED;
    if (o->seed >= 0 && o->seed != seed)
        return cli_fail("%s was trained with seed %" PRId64 ", not --seed %" PRId64, o->resume, seed, o->seed);
    if (o->decay >= 0 && o->decay != decay)
        return cli_fail("%s was trained with --decay-steps %" PRId64 ", not %" PRId64, o->resume, decay, o->decay);
    job->config.seed = (uint64_t)seed;
    job->config.decay_steps = decay;
    return 0;
}

static int check_configuration(const train_job *job) {
    metadata expected;
    describe(&expected, &job->config, job->first_step);
    for (size_t i = 0; i < expected.count; i++) {
        const safetensors_pair *pair = &expected.pairs[i];
        const char *found = safetensors_metadata(job->checkpoint, pair->key);
        if (!found || strcmp(found, pair->value) != 0)
            return cli_fail("%s is a checkpoint of another configuration: %s is %s, expected %s", job->options.resume,
                            pair->key, found ? found : "missing", pair->value);
    }
    return 0;
}

/* ---- Tensors ---- */

static int check_tensor(const train_job *job, const lm_tensor *tensor, int kind) {
    tensor_name name = name_of(tensor, kind);
    const safetensors_tensor *found = safetensors_find(job->checkpoint, name.text);
    if (!found) return cli_fail("%s has no tensor '%s'", job->options.resume, name.text);
    int same = found->dtype == SAFETENSORS_F32 && found->dims == tensor->dims;
    for (int i = 0; same && i < tensor->dims; i++) same = found->shape[i] == tensor->shape[i];
    return same ? 0
                : cli_fail("%s: tensor '%s' has another dtype or shape than the model", job->options.resume, name.text);
}

static int check_tensors(const train_job *job) {
    lm_layout layout;
    if (lm_layout_init(&layout, &job->config)) return cli_fail("no memory for the layout of the model");
    int code = 0;
    for (int n = 0; n < layout.count && !code; n++) {
        for (int kind = 0; kind < LM_KINDS && !code; kind++) code = check_tensor(job, &layout.tensors[n], kind);
    }
    if (!code && safetensors_count(job->checkpoint) != (size_t)(layout.count * LM_KINDS))
        code = cli_fail("%s has %zu tensors, expected %d", job->options.resume, safetensors_count(job->checkpoint),
                        layout.count * LM_KINDS);
    lm_layout_free(&layout);
    return code;
}

int train_checkpoint_open(train_job *job) {
    char error[SAFETENSORS_ERROR_BYTES];
    if (safetensors_open(job->options.resume, &job->checkpoint, error)) return cli_fail("%s", error);
    int code = take_choices(job);
    if (!code) code = check_configuration(job);
    return code ? code : check_tensors(job);
}

int train_checkpoint_other_text(const train_job *job) {
    char mine[VALUE_BYTES];
    const char *text = job->checkpoint ? safetensors_metadata(job->checkpoint, "text") : NULL;
    digest_of_text(&job->text, mine);
    return text && strcmp(text, mine) != 0;
}

void train_checkpoint_restore(const train_job *job, lm_trainer *trainer) {
    lm_model *model = trainer->model;
    for (int n = 0; n < model->layout.count; n++) {
        const lm_tensor *tensor = &model->layout.tensors[n];
        for (int kind = 0; kind < LM_KINDS; kind++) {
            tensor_name name = name_of(tensor, kind);
            lm_model_write(model, tensor, kind, safetensors_find(job->checkpoint, name.text)->data);
        }
    }
    lm_model_refresh(model);
    trainer->step = job->first_step;
}

/* Returns as train_checkpoint_save does. */
static int write_file(const lm_trainer *trainer, const char *path, int *code) {
    const lm_model *model = trainer->model;
    const lm_layout *layout = &model->layout;
    size_t count = (size_t)(layout->count * LM_KINDS), values = 0;
    for (int n = 0; n < layout->count; n++) values += (size_t)layout->tensors[n].count;
    safetensors_tensor *tensors = calloc(count, sizeof *tensors);
    tensor_name *names = calloc(count, sizeof *names);
    float *data = malloc(LM_KINDS * values * sizeof(float)), *to = data;
    int bad = 0;
    if (!tensors || !names || !data) *code = cli_fail("no memory for the checkpoint: %zu values", LM_KINDS * values);
    for (size_t i = 0; i < count && !bad && !*code; i++) {
        const lm_tensor *tensor = &layout->tensors[i / LM_KINDS];
        int kind = (int)(i % LM_KINDS);
        names[i] = name_of(tensor, kind);
        tensors[i] =
            (safetensors_tensor){.name = names[i].text, .dtype = SAFETENSORS_F32, .dims = tensor->dims, .data = to};
        memcpy(tensors[i].shape, tensor->shape, sizeof tensor->shape);
        bad = lm_model_read(model, tensor, kind, to);
        to += tensor->count;
    }
    metadata m;
    char digest[VALUE_BYTES];
    describe(&m, &model->config, trainer->step);
    digest_of_text(trainer->text, digest);
    put(&m, "text", "%s", digest);
    char error[SAFETENSORS_ERROR_BYTES];
    if (!bad && !*code) bad = lm_outer_check(trainer->outer);
    if (!bad && !*code && safetensors_write(path, tensors, count, m.pairs, m.count, error))
        *code = cli_fail("%s", error);
    free(data);
    free(names);
    free(tensors);
    return bad;
}

int train_checkpoint_save(lm_trainer *trainer, const char *path, int *code) {
    lm_model *model = trainer->model;
    /* Every rank's experts are up to date before rank 0 reads them, and stay until it has. */
    LM_TRY(lm_meet(model, "waiting to write the checkpoint"));
    if (model->rank == 0 && model->node == 0) LM_TRY(write_file(trainer, path, code));
    return lm_meet(model, "waiting for the checkpoint");
}
