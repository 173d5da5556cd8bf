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

/* Takes the reference to `value` in every case, like json_object_set_new. */
static int put_once(json_t *object, const char *key, json_t *value) {
    if (json_object_get(object, key)) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(object, key, value);
}

/* The padded JSON text, to be freed; NULL with a sentence. Keys are sorted by jansson, so equal input, equal text. */
static char *make_header(const char *path, const safetensors_tensor *tensors, size_t count,
                         const safetensors_pair *metadata, size_t pairs, char *error) {
    json_t *header = json_object();
    const char *bad = NULL;
    size_t offset = 0;
    if (pairs) {
        json_t *object = json_object();
        for (size_t i = 0; i < pairs && !bad; i++) {
            if (put_once(object, metadata[i].key, json_string(metadata[i].value))) bad = metadata[i].key;
        }
        if (put_once(header, "__metadata__", object) && !bad) bad = "__metadata__";
    }
    for (size_t i = 0; i < count && !bad; i++) {
        size_t bytes = tensor_bytes(&tensors[i]);
        json_t *shape = json_array();
        for (int d = 0; d < tensors[i].dims; d++) json_array_append_new(shape, json_integer(tensors[i].shape[d]));
        json_t *entry = json_pack("{s:[I,I], s:s, s:o}", "data_offsets", (json_int_t)offset,
                                  (json_int_t)(offset + bytes), "dtype", safetensors_dtype_name(tensors[i].dtype),
                                  "shape", shape);
        if (put_once(header, tensors[i].name, entry)) bad = tensors[i].name;
        offset += bytes;
    }
    char *text = bad ? NULL : json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(header);
    size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    char *grown = text ? realloc(text, padded + 1) : NULL;
    if (!grown) {
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: no header for '%.64s': the name appears twice or is not "
                 "UTF-8, or memory ran out", path, bad ? bad : "the file");
        free(text);
        return NULL;
    }
    memset(grown + length, ' ', padded - length);
    grown[padded] = '\0';
    return grown;
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

static int write_contents(int fd, const char *header, const safetensors_tensor *tensors, size_t count) {
    unsigned char length[8];
    uint64_t value = strlen(header);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(value >> 8 * i);
    if (write_all(fd, length, sizeof length) || write_all(fd, header, value)) return -1;
    for (size_t i = 0; i < count; i++) {
        if (write_all(fd, tensors[i].data, tensor_bytes(&tensors[i]))) return -1;
    }
    return fsync(fd);
}

/* So that the new name survives a crash of the machine. Some file systems refuse to sync a folder: not an error. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                      const safetensors_pair *metadata, size_t pairs, char error[SAFETENSORS_ERROR_BYTES]) {
    char temporary[PATH_MAX];
    struct stat info;
    if (snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temporary) {
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: the path is too long", path);
        return -1;
    }
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) { /* a rename would replace a device by a file */
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: exists and is not a regular file", path);
        return -1;
    }
    char *header = make_header(path, tensors, count, metadata, pairs, error);
    if (!header) return -1;
    unlink(temporary); /* left by a process of the same number that crashed */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int bad = fd < 0 || write_contents(fd, header, tensors, count) != 0;
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && !bad) bad = 1, why = errno;
    if (!bad && rename(temporary, path) != 0) bad = 1, why = errno;
    free(header);
    if (bad) {
        if (fd >= 0) unlink(temporary);
        snprintf(error, SAFETENSORS_ERROR_BYTES, "%.200s: cannot be written: %s", path, strerror(why));
        return -1;
    }
    sync_folder(path);
    return 0;
}
