/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: the header by jansson, the data straight from the caller's memory, the name by rename. */
#include "cli/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t tensor_bytes(const safetensors_tensor *tensor) {
    size_t bytes = safetensors_dtype_bytes(tensor->dtype);
    for (int d = 0; d < tensor->dims; d++) bytes *= (size_t)tensor->shape[d];
    return bytes;
}

/* Larger elements first, otherwise as given: then every tensor is aligned to its element size. To be freed. */
static const safetensors_tensor **sort_tensors(const safetensors_tensor *tensors, size_t count) {
    const safetensors_tensor **order = malloc((count + 1) * sizeof *order);
    size_t placed = 0;
    for (size_t bytes = 8; order && bytes >= 1; bytes /= 2) {
        for (size_t i = 0; i < count; i++) {
            if (safetensors_dtype_bytes(tensors[i].dtype) == bytes) order[placed++] = &tensors[i];
        }
    }
    return order;
}

/* Takes the reference to `value` in every case, like json_object_set_new. */
static int put_once(json_t *object, const char *key, json_t *value) {
    if (json_object_get(object, key)) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(object, key, value);
}

static int put_metadata(json_t *header, const safetensors_pair *metadata, size_t pairs) {
    json_t *object = json_object();
    int bad = 0;
    for (size_t i = 0; i < pairs && !bad; i++) bad = put_once(object, metadata[i].key, json_string(metadata[i].value));
    return put_once(header, "__metadata__", object) | bad;
}

static int put_tensor(json_t *header, const safetensors_tensor *tensor, size_t offset) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor->dims; d++) json_array_append_new(shape, json_integer(tensor->shape[d]));
    return put_once(header, tensor->name,
                    json_pack("{s:[I,I], s:s, s:o}", "data_offsets", (json_int_t)offset,
                              (json_int_t)(offset + tensor_bytes(tensor)), "dtype",
                              safetensors_dtype_name(tensor->dtype), "shape", shape));
}

/* Spaces up to a multiple of 8. Takes and returns memory of malloc; NULL when there is none. */
static char *pad(char *text) {
    if (!text) return NULL;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *grown = realloc(text, padded + 1);
    if (!grown) {
        free(text);
        return NULL;
    }
    memset(grown + length, ' ', padded - length);
    grown[padded] = '\0';
    return grown;
}

/* The JSON text, to be freed. Keys are sorted by jansson, so equal input gives equal text. NULL: *bad has the name
 * that cannot be used, or memory ran out. */
static char *make_header(const safetensors_tensor **order, size_t count, const safetensors_pair *metadata, size_t pairs,
                         const char **bad) {
    json_t *header = json_object();
    size_t offset = 0;
    *bad = pairs && put_metadata(header, metadata, pairs) ? "__metadata__" : NULL;
    for (size_t i = 0; i < count && !*bad; i++) {
        if (put_tensor(header, order[i], offset)) *bad = order[i]->name;
        offset += tensor_bytes(order[i]);
    }
    char *text = *bad ? NULL : pad(json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS));
    json_decref(header);
    return text;
}

static int write_all(int fd, const void *data, size_t bytes) {
    const char *next = data;
    while (bytes > 0) {
        size_t chunk = bytes < (1u << 30) ? bytes : 1u << 30; /* Linux writes at most 2 GiB at once */
        ssize_t done = write(fd, next, chunk);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        next += done;
        bytes -= (size_t)done;
    }
    return 0;
}

static int write_contents(int fd, const char *header, const safetensors_tensor **order, size_t count) {
    unsigned char length[8];
    uint64_t value = strlen(header);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(value >> 8 * i);
    if (write_all(fd, length, sizeof length) || write_all(fd, header, value)) return -1;
    for (size_t i = 0; i < count; i++) {
        if (write_all(fd, order[i]->data, tensor_bytes(order[i]))) return -1;
    }
    return fsync(fd);
}

/* To be freed; NULL when there is no memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

/* So that the new name survives a crash of the machine. Some file systems refuse to sync a folder: not an error. */
static void sync_folder(const char *path) {
    char *folder = folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

static int fail(const char *path, int why, char error[SAFETENSORS_ERROR_BYTES]) {
    snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: cannot be written: %s", path, strerror(why));
    return -1;
}

int safetensors_check_place(const char *path, char error[SAFETENSORS_ERROR_BYTES]) {
    struct stat info;
    /* A rename would replace a device. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s is there and is no regular file; name another file", path);
        return -1;
    }
    char *folder = folder_of(path);
    int why = !folder ? ENOMEM : access(folder, W_OK | X_OK) == 0 ? 0 : errno;
    free(folder);
    return why ? fail(path, why, error) : 0;
}

/* 0, or an errno. */
static int write_file(const char *path, const char *header, const safetensors_tensor **order, size_t count) {
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temporary) {
        return ENAMETOOLONG;
    }
    unlink(temporary); /* left by a process of the same number that crashed */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int why = write_contents(fd, header, order, count) ? errno : 0;
    if (close(fd) != 0 && !why) why = errno;
    if (!why && rename(temporary, path) != 0) why = errno;
    if (why) unlink(temporary);
    return why;
}

int safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                      const safetensors_pair *metadata, size_t pairs, char error[SAFETENSORS_ERROR_BYTES]) {
    if (safetensors_check_place(path, error)) return -1;
    const char *bad = NULL;
    const safetensors_tensor **order = sort_tensors(tensors, count);
    char *header = order ? make_header(order, count, metadata, pairs, &bad) : NULL;
    int code = 0, why = header ? write_file(path, header, order, count) : ENOMEM;
    if (bad) {
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: the name '%.64s' appears twice or is not UTF-8", path, bad);
        code = -1;
    } else if (why) {
        code = fail(path, why, error);
    } else {
        sync_folder(path);
    }
    free(header);
    free(order);
    return code;
}
