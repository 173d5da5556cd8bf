/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of named tensors in the safetensors format: eight bytes of little-endian header length, a JSON header that
 * gives every tensor's dtype, shape and place, then the data, without gaps. Functions return 0, or -1 with a sentence
 * in `error` that names the file and the tensor.
 */
#ifndef FERRY_CLI_SAFETENSORS_H
#define FERRY_CLI_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

/* Name in files and bytes per element. */
#define SAFETENSORS_DTYPE_MAP(X)                                                                                       \
    X(BOOL, 1)                                                                                                         \
    X(U8, 1)                                                                                                           \
    X(I8, 1)                                                                                                           \
    X(F8_E5M2, 1)                                                                                                      \
    X(F8_E4M3, 1)                                                                                                      \
    X(F8_E8M0, 1)                                                                                                      \
    X(I16, 2)                                                                                                          \
    X(U16, 2)                                                                                                          \
    X(F16, 2)                                                                                                          \
    X(BF16, 2)                                                                                                         \
    X(I32, 4)                                                                                                          \
    X(U32, 4)                                                                                                          \
    X(F32, 4)                                                                                                          \
    X(F64, 8)                                                                                                          \
    X(I64, 8)                                                                                                          \
    X(U64, 8)

typedef enum safetensors_dtype {
#define SAFETENSORS_DTYPE_ENUM(name, bytes) SAFETENSORS_##name,
    SAFETENSORS_DTYPE_MAP(SAFETENSORS_DTYPE_ENUM)
#undef SAFETENSORS_DTYPE_ENUM
        SAFETENSORS_DTYPE_COUNT
} safetensors_dtype;

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_ERROR_BYTES = 512 };

typedef struct safetensors_tensor {
    const char *name;
    safetensors_dtype dtype;
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    const void *data; /* aligned to the element size when read */
    size_t bytes;     /* filled in by the reader; the writer computes it */
} safetensors_tensor;

/* One entry of the header's __metadata__. */
typedef struct safetensors_pair {
    const char *key, *value;
} safetensors_pair;

typedef struct safetensors_file safetensors_file;

const char *safetensors_dtype_name(safetensors_dtype dtype);
size_t safetensors_dtype_bytes(safetensors_dtype dtype);

/* Maps the file and checks all of it before it returns; tensors stay valid until close. */
int safetensors_open(const char *path, safetensors_file **file, char error[SAFETENSORS_ERROR_BYTES]);
/* The same for a file's bytes in memory, which must stay as long as the result. `name` is for messages. */
int safetensors_parse(const void *bytes, size_t size, const char *name, safetensors_file **file,
                      char error[SAFETENSORS_ERROR_BYTES]);
void safetensors_close(safetensors_file *file);

size_t safetensors_count(const safetensors_file *file);
/* In the order of their data; index < count. */
const safetensors_tensor *safetensors_at(const safetensors_file *file, size_t index);
/* NULL when the file has no such tensor. */
const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name);
/* NULL when the file has no such key. */
const char *safetensors_metadata(const safetensors_file *file, const char *key);

/* Whether a file can be written there: the folder takes new names, and nothing but a regular file would be replaced.
 * For a command that works long before it writes. */
int safetensors_check_place(const char *path, char error[SAFETENSORS_ERROR_BYTES]);
/*
 * Writes a file that appears whole or not at all: a temporary file in the same folder, synced, then renamed. Data of
 * larger elements first (so that all of it is aligned), otherwise in the given order; header keys sorted, header
 * padded with spaces to 8 bytes. Equal input gives equal bytes. No pairs: no __metadata__.
 */
int safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                      const safetensors_pair *metadata, size_t pairs, char error[SAFETENSORS_ERROR_BYTES]);

#endif
