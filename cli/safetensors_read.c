/* SPDX-License-Identifier: Apache-2.0 */
/* The reader. Nothing in the file is believed: every number is checked before it is used. */
#include "cli/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct safetensors_file {
    safetensors_tensor *tensors;
    size_t count;
    json_t *header; /* owns the names and the metadata */
    void **copies;  /* [count] of tensors whose place in the file is not aligned; NULL for the others */
    void *mapping;  /* NULL when the caller holds the bytes */
    size_t mapping_bytes;
};

/* What the checks need to know, and where their sentence goes. */
typedef struct reading {
    const char *path;
    const unsigned char *data; /* the first byte after the header */
    size_t data_bytes;
    char *error;
} reading;

enum { HEADER_LENGTH_BYTES = 8 };
static const uint64_t header_limit = 100u * 1000 * 1000; /* the format's own limit */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define DTYPE_ROW(name, bytes) {#name, bytes},
    SAFETENSORS_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *safetensors_dtype_name(safetensors_dtype dtype) { return dtypes[dtype].name; }
size_t safetensors_dtype_bytes(safetensors_dtype dtype) { return dtypes[dtype].bytes; }

static int fail(const reading *in, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(const reading *in, const char *format, ...) {
    int used = snprintf(in->error, SAFETENSORS_ERROR_BYTES, "%.200s: ", in->path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(in->error + used, SAFETENSORS_ERROR_BYTES - (size_t)used, format, arguments);
    va_end(arguments);
    return -1;
}

static int read_dtype(const reading *in, safetensors_tensor *tensor, const json_t *value) {
    const char *name = json_string_value(value);
    if (!name) return fail(in, "tensor '%.64s' has no dtype", tensor->name);
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            tensor->dtype = (safetensors_dtype)i;
            return 0;
        }
    }
    return fail(in, "tensor '%.64s' has dtype '%.32s', which is not known", tensor->name, name);
}

/* Also sets tensor->bytes. */
static int read_shape(const reading *in, safetensors_tensor *tensor, const json_t *value) {
    if (!json_is_array(value)) return fail(in, "tensor '%.64s' has no shape", tensor->name);
    if (json_array_size(value) > SAFETENSORS_MAX_DIMS) {
        return fail(in, "tensor '%.64s' has %zu dimensions; at most %d are supported", tensor->name,
                    json_array_size(value), SAFETENSORS_MAX_DIMS);
    }
    tensor->dims = (int)json_array_size(value);
    size_t bytes = dtypes[tensor->dtype].bytes;
    for (int d = 0; d < tensor->dims; d++) {
        const json_t *extent = json_array_get(value, (size_t)d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0) {
            return fail(in, "tensor '%.64s': dimension %d is not a whole number >= 0", tensor->name, d);
        }
        tensor->shape[d] = json_integer_value(extent);
        if (__builtin_mul_overflow(bytes, (size_t)tensor->shape[d], &bytes)) {
            return fail(in, "tensor '%.64s': its shape is larger than any memory", tensor->name);
        }
    }
    tensor->bytes = bytes;
    return 0;
}

static int read_place(const reading *in, safetensors_tensor *tensor, const json_t *value) {
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return fail(in, "tensor '%.64s' has no data_offsets of two whole numbers", tensor->name);
    }
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > in->data_bytes) {
        return fail(in, "tensor '%.64s': data_offsets %lld to %lld do not lie in the %zu bytes of data", tensor->name,
                    (long long)begin, (long long)end, in->data_bytes);
    }
    if ((uint64_t)(end - begin) != tensor->bytes) {
        return fail(in, "tensor '%.64s': data_offsets span %lld bytes, but dtype and shape need %zu", tensor->name,
                    (long long)(end - begin), tensor->bytes);
    }
    tensor->data = in->data + begin;
    return 0;
}

static int read_tensor(const reading *in, safetensors_tensor *tensor, json_t *entry) {
    if (!json_is_object(entry)) return fail(in, "the header's entry '%.64s' is not an object", tensor->name);
    const char *key;
    json_t *value;
    json_object_foreach(entry, key, value) {
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets")) {
            return fail(in, "tensor '%.64s' has an unknown entry '%.64s'", tensor->name, key);
        }
    }
    if (read_dtype(in, tensor, json_object_get(entry, "dtype"))) return -1;
    if (read_shape(in, tensor, json_object_get(entry, "shape"))) return -1;
    return read_place(in, tensor, json_object_get(entry, "data_offsets"));
}

static int check_metadata(const reading *in, json_t *metadata) {
    if (!json_is_object(metadata)) return fail(in, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) return fail(in, "__metadata__ entry '%.64s' is not a string", key);
    }
    return 0;
}

static int compare_places(const void *left, const void *right) {
    const safetensors_tensor *a = left, *b = right;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Together the tensors must cover the data exactly once. */
static int check_cover(const reading *in, const safetensors_tensor *tensors, size_t count) {
    const unsigned char *next = in->data;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *begin = tensors[i].data;
        if (begin < next) return fail(in, "tensor '%.64s' overlaps another", tensors[i].name);
        if (begin > next) {
            return fail(in, "%zu bytes before tensor '%.64s' belong to no tensor", (size_t)(begin - next),
                        tensors[i].name);
        }
        next = begin + tensors[i].bytes;
    }
    size_t rest = (size_t)(in->data + in->data_bytes - next);
    return rest ? fail(in, "%zu bytes at the end belong to no tensor", rest) : 0;
}

static int align_tensors(const reading *in, safetensors_file *file) {
    for (size_t i = 0; i < file->count; i++) {
        safetensors_tensor *tensor = &file->tensors[i];
        if ((uintptr_t)tensor->data % dtypes[tensor->dtype].bytes == 0 || tensor->bytes == 0) continue;
        file->copies[i] = malloc(tensor->bytes);
        if (!file->copies[i]) return fail(in, "no memory for an aligned copy of tensor '%.64s'", tensor->name);
        memcpy(file->copies[i], tensor->data, tensor->bytes);
        tensor->data = file->copies[i];
    }
    return 0;
}

static int read_header(const reading *in, safetensors_file *file) {
    const char *name;
    json_t *entry;
    size_t entries = json_object_size(file->header);
    file->tensors = calloc(entries + 1, sizeof *file->tensors);
    file->copies = calloc(entries + 1, sizeof *file->copies);
    if (!file->tensors || !file->copies) return fail(in, "no memory for %zu tensors", entries);
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            if (check_metadata(in, entry)) return -1;
            continue;
        }
        safetensors_tensor *tensor = &file->tensors[file->count++];
        tensor->name = name;
        if (read_tensor(in, tensor, entry)) return -1;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_places);
    if (check_cover(in, file->tensors, file->count)) return -1;
    return align_tensors(in, file);
}

static int parse_into(safetensors_file *file, reading *in, const unsigned char *bytes, size_t size) {
    if (size < HEADER_LENGTH_BYTES) {
        return fail(in, "not a safetensors file: %zu bytes are too few, the length of its header alone takes 8", size);
    }
    uint64_t length = 0;
    for (int i = HEADER_LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | bytes[i];
    if (length > header_limit || length > size - HEADER_LENGTH_BYTES) {
        return fail(in,
                    "not a safetensors file%s: a header of %llu bytes is announced in a file of %zu bytes (limit %llu)",
                    length > header_limit ? "" : ", or cut short", (unsigned long long)length, size,
                    (unsigned long long)header_limit);
    }
    const char *text = (const char *)bytes + HEADER_LENGTH_BYTES;
    json_error_t bad;
    if (length == 0 || text[0] != '{') return fail(in, "not a safetensors file: the header is not a JSON object");
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &bad);
    if (!file->header) return fail(in, "not a safetensors file: the header is not valid JSON: %.200s", bad.text);
    in->data = bytes + HEADER_LENGTH_BYTES + length;
    in->data_bytes = size - HEADER_LENGTH_BYTES - (size_t)length;
    return read_header(in, file);
}

int safetensors_parse(const void *bytes, size_t size, const char *name, safetensors_file **file,
                      char error[SAFETENSORS_ERROR_BYTES]) {
    reading in = {.path = name, .error = error};
    safetensors_file *made = calloc(1, sizeof *made);
    if (!made) return fail(&in, "no memory to read it");
    if (parse_into(made, &in, bytes, size)) {
        safetensors_close(made);
        return -1;
    }
    *file = made;
    return 0;
}

int safetensors_open(const char *path, safetensors_file **file, char error[SAFETENSORS_ERROR_BYTES]) {
    reading in = {.path = path, .error = error};
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to is no reason to wait */
    if (fd < 0) return fail(&in, "cannot be opened: %s", strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return fail(&in, "is not a regular file");
    }
    size_t size = (size_t)info.st_size;
    void *mapping = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int map_error = errno;
    close(fd);
    if (mapping == MAP_FAILED) return fail(&in, "cannot be mapped: %s", strerror(map_error));
    safetensors_file *made;
    if (safetensors_parse(mapping, size, path, &made, error)) {
        if (mapping) munmap(mapping, size);
        return -1;
    }
    made->mapping = mapping;
    made->mapping_bytes = size;
    *file = made;
    return 0;
}

void safetensors_close(safetensors_file *file) {
    if (!file) return;
    for (size_t i = 0; file->copies && i < file->count; i++) free(file->copies[i]);
    if (file->mapping) munmap(file->mapping, file->mapping_bytes);
    json_decref(file->header);
    free(file->copies);
    free(file->tensors);
    free(file);
}

size_t safetensors_count(const safetensors_file *file) { return file->count; }

const safetensors_tensor *safetensors_at(const safetensors_file *file, size_t index) { return &file->tensors[index]; }

const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name) {
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    }
    return NULL;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
