/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of the language model. An input is the header of a safetensors file; the data behind it, as much as a
 * small model needs and a little more or less, is made up. What is accepted is copied into a trainer. Files and
 * messages are replaced at link time, so an execution touches neither the disk nor a terminal.
 */
#include "tests/fuzz/input.h"

#include "cli/message.h"
#include "cli/train.h"

#include <stdarg.h>
#include <string.h>

static unsigned char *file_bytes;
static size_t file_size, model_bytes;
static lm_trainer *trainer;

int __wrap_safetensors_open(const char *path, safetensors_file **file, char error[SAFETENSORS_ERROR_BYTES]);
int __wrap_cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int __wrap_safetensors_open(const char *path, safetensors_file **file, char error[SAFETENSORS_ERROR_BYTES]) {
    return safetensors_parse(file_bytes, file_size, path, file, error);
}

int __wrap_cli_fail(const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    FUZZ_CHECK(strncmp(line, "input", 5) == 0, "'%s' does not name the file", line);
    return CLI_FAILED;
}

static lm_config small_config(void) {
    lm_config config = lm_config_default();
    config.hidden = config.intermediate = 2;
    config.layers = config.heads = 1;
    config.length = 4;
    config.sequences = 8;
    return config;
}

/* A trainer of one rank that lives as long as the fuzzer. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static unsigned char text[4096];
    static lm_text data;
    lm_config config = small_config();
    ferry_thread_group *group;
    ferry_comm *comm;
    ferry_comm_config comm_config;
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)i;
    data = (lm_text){.bytes = text, .size = sizeof text, .train = sizeof text / 2};
    ferry_comm_config_init(&comm_config);
    if (ferry_thread_group_create(1, &group) || ferry_thread_group_bootstrap(group, 0, &comm_config.bootstrap) ||
        ferry_comm_create(&comm_config, &comm) || lm_trainer_create(comm, NULL, &config, &data, &trainer))
        return -1;
    for (int n = 0; n < trainer->model->layout.count; n++)
        model_bytes += (size_t)trainer->model->layout.tensors[n].count * LM_KINDS * sizeof(float);
    return 0;
}

/* The first byte says how the data's size differs from the model's; the rest is the header. */
static void make_file(const uint8_t *data, size_t size) {
    fuzz_input in = fuzz_input_of(data, size);
    uint8_t more = fuzz_byte(&in);
    size_t header = fuzz_left(&in), bytes = model_bytes + (more < 128 ? 0 : more - 192);
    file_size = 8 + header + bytes;
    file_bytes = malloc(file_size);
    if (!file_bytes) exit(2);
    for (int i = 0; i < 8; i++) file_bytes[i] = (unsigned char)(header >> 8 * i);
    if (header) memcpy(file_bytes + 8, in.next, header);
    for (size_t i = 0; i < bytes; i++) file_bytes[8 + header + i] = (unsigned char)(i * 37 + 1);
}

/* Some value of every tensor is the one in the file. */
static void check_restored(const train_job *job) {
    for (int n = 0; n < trainer->model->layout.count; n++) {
        const lm_tensor *tensor = &trainer->model->layout.tensors[n];
        const safetensors_tensor *found = safetensors_find(job->checkpoint, tensor->name);
        float *values = malloc((size_t)tensor->count * sizeof *values);
        if (!values) exit(2);
        lm_model_read(trainer->model, tensor, LM_VALUE, values);
        FUZZ_CHECK(memcmp(values, found->data, found->bytes) == 0, "tensor %s", tensor->name);
        free(values);
    }
    FUZZ_CHECK(trainer->step == job->first_step && job->first_step >= 0, "step %lld", (long long)trainer->step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    train_job job = {.config = small_config(),
                     .options = {.resume = "input", .seed = -1, .decay = -1, .steps = 1, .ranks = 1}};
    make_file(data, size);
    int code = train_checkpoint_open(&job);
    FUZZ_CHECK(code == CLI_OK || code == CLI_FAILED, "code %d", code);
    if (code == CLI_OK) {
        train_checkpoint_restore(&job, trainer);
        check_restored(&job);
    }
    safetensors_close(job.checkpoint);
    free(file_bytes);
    return 0;
}
