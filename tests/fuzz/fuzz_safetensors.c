/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader on any bytes. What it accepts must be whole: every byte of data in one tensor, readable. */
#include "tests/fuzz/input.h"

#include "cli/safetensors.h"

#include <string.h>

static size_t check_tensor(const safetensors_file *file, size_t index, unsigned *sum) {
    const safetensors_tensor *tensor = safetensors_at(file, index);
    size_t element = safetensors_dtype_bytes(tensor->dtype), bytes = element;
    FUZZ_CHECK(tensor->dims >= 0 && tensor->dims <= SAFETENSORS_MAX_DIMS, "%d dimensions", tensor->dims);
    for (int d = 0; d < tensor->dims; d++) bytes *= (size_t)tensor->shape[d];
    FUZZ_CHECK(bytes == tensor->bytes, "%zu bytes by shape, %zu said", bytes, tensor->bytes);
    FUZZ_CHECK(bytes == 0 || (uintptr_t)tensor->data % element == 0, "not aligned to %zu", element);
    FUZZ_CHECK(safetensors_find(file, tensor->name) == tensor, "'%s' is found elsewhere", tensor->name);
    for (size_t i = 0; i < bytes; i++) *sum += ((const unsigned char *)tensor->data)[i];
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[SAFETENSORS_ERROR_BYTES] = "";
    safetensors_file *file = NULL;
    if (safetensors_parse(data, size, "input", &file, error) != 0) {
        FUZZ_CHECK(strncmp(error, "input: ", 7) == 0 && file == NULL, "the error is '%s'", error);
        return 0;
    }
    uint64_t header = 0;
    size_t bytes = 0;
    unsigned sum = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | data[i];
    for (size_t i = 0; i < safetensors_count(file); i++) bytes += check_tensor(file, i, &sum);
    FUZZ_CHECK(8 + header + bytes == size, "%zu bytes of tensors in a file of %zu", bytes, size);
    for (size_t i = 0; i < size; i++) sum -= i < 8 + header ? 0 : data[i];
    FUZZ_CHECK(sum == 0, "the tensors do not hold the file's bytes");
    const char *value = safetensors_metadata(file, "format");
    FUZZ_CHECK(value == NULL || strlen(value) < size, "metadata longer than the file");
    safetensors_close(file);
    return 0;
}
