/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader and writer: round trips, every refusal by name, and random damage under which the reader
 * must never read outside the bytes that it was given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/safetensors.h"

static char folder[] = "/tmp/ferry-safetensors-XXXXXX";
static char path[128];
static char error[SAFETENSORS_ERROR_BYTES];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when a temporary file was left */
}

/* The bytes of a file with this header and `data_bytes` bytes of data, in memory of exactly that size. */
static unsigned char *compose(const char *header, size_t data_bytes, size_t *size) {
    size_t length = strlen(header);
    *size = 8 + length + data_bytes;
    unsigned char *bytes = malloc(*size);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (unsigned char)(i + 1);
    return bytes;
}

/* ---- Round trips ---- */

static const float floats[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
static const uint16_t halves[3] = {0x3f80, 0x7fc0, 0x8000};
static const int64_t longs[2] = {INT64_MIN, 7};

static const safetensors_tensor sample[] = {
    {.name = "halves", .dtype = SAFETENSORS_BF16, .dims = 1, .shape = {3}, .data = halves},
    {.name = "empty", .dtype = SAFETENSORS_F32, .dims = 2, .shape = {0, 5}, .data = NULL},
    {.name = "floats", .dtype = SAFETENSORS_F32, .dims = 2, .shape = {2, 3}, .data = floats},
    {.name = "scalar", .dtype = SAFETENSORS_I64, .dims = 0, .data = longs},
    {.name = "longs \"\\/ \xc3\xa4", .dtype = SAFETENSORS_I64, .dims = 1, .shape = {2}, .data = longs}};
enum { SAMPLE_COUNT = sizeof sample / sizeof *sample };
static const safetensors_pair pairs[] = {{"b", "2"}, {"a", "text with \"quotes\"\n"}};

static void check_sample(const safetensors_file *file) {
    assert_int_equal(safetensors_count(file), SAMPLE_COUNT);
    for (int i = 0; i < SAMPLE_COUNT; i++) {
        const safetensors_tensor *t = safetensors_find(file, sample[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, sample[i].dtype);
        assert_int_equal(t->dims, sample[i].dims);
        size_t bytes = safetensors_dtype_bytes(t->dtype);
        for (int d = 0; d < t->dims; d++) {
            assert_int_equal(t->shape[d], sample[i].shape[d]);
            bytes *= (size_t)t->shape[d];
        }
        assert_int_equal(t->bytes, bytes);
        if (bytes) assert_memory_equal(t->data, sample[i].data, bytes);
        assert_int_equal((uintptr_t)t->data % safetensors_dtype_bytes(t->dtype), 0);
    }
}

static void round_trip(void **state) {
    (void)state;
    safetensors_file *file = NULL;
    if (safetensors_write(path, sample, SAMPLE_COUNT, pairs, 2, error)) fail_msg("%s", error);
    if (safetensors_open(path, &file, error)) fail_msg("%s", error);
    check_sample(file);
    assert_string_equal(safetensors_metadata(file, "a"), pairs[1].value);
    assert_string_equal(safetensors_metadata(file, "b"), "2");
    assert_null(safetensors_metadata(file, "c"));
    assert_null(safetensors_find(file, "absent"));
    assert_null(safetensors_find(file, "__metadata__"));
    /* Larger elements first, so that all of them lie aligned in the file. */
    for (size_t i = 1; i < safetensors_count(file); i++) {
        assert_true(safetensors_dtype_bytes(safetensors_at(file, i)->dtype) <=
                    safetensors_dtype_bytes(safetensors_at(file, i - 1)->dtype));
    }
    safetensors_close(file);
}

static unsigned char *read_file(size_t *size) {
    struct stat info;
    FILE *from = fopen(path, "rb");
    assert_non_null(from);
    assert_int_equal(stat(path, &info), 0);
    *size = (size_t)info.st_size;
    unsigned char *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, from), *size);
    fclose(from);
    return bytes;
}

static void equal_input_gives_equal_bytes(void **state) {
    (void)state;
    size_t size[2];
    unsigned char *bytes[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(safetensors_write(path, sample, SAMPLE_COUNT, pairs, 2, error), 0);
        bytes[i] = read_file(&size[i]);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    uint64_t header = bytes[0][0] | (uint64_t)bytes[0][1] << 8;
    assert_int_equal(header % 8, 0);
    free(bytes[0]);
    free(bytes[1]);
}

static void empty_file_of_tensors(void **state) {
    (void)state;
    safetensors_file *file = NULL;
    assert_int_equal(safetensors_write(path, NULL, 0, NULL, 0, error), 0);
    if (safetensors_open(path, &file, error)) fail_msg("%s", error);
    assert_int_equal(safetensors_count(file), 0);
    safetensors_close(file);
}

static void unaligned_data_is_copied(void **state) {
    (void)state;
    size_t size;
    safetensors_file *file = NULL;
    /* One byte, then F32: the second tensor cannot be aligned where it lies. */
    unsigned char *bytes = compose("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                   "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                                   "\"c\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[9,17]}}",
                                   17, &size);
    if (safetensors_parse(bytes, size, "memory", &file, error)) fail_msg("%s", error);
    const unsigned char want[8] = {2, 3, 4, 5, 6, 7, 8, 9};
    const safetensors_tensor *b = safetensors_find(file, "b"), *c = safetensors_find(file, "c");
    assert_int_equal((uintptr_t)b->data % 4, 0);
    assert_int_equal((uintptr_t)c->data % 8, 0);
    assert_memory_equal(b->data, want, 8);
    safetensors_close(file);
    free(bytes);
}

/* ---- Refusals ---- */

static void refuse(const char *header, size_t data_bytes, const char *reason) {
    size_t size;
    safetensors_file *file = (void *)1;
    unsigned char *bytes = compose(header, data_bytes, &size);
    strcpy(error, "nothing was said");
    if (safetensors_parse(bytes, size, "memory", &file, error) == 0) fail_msg("accepted: %s", header);
    if (!strstr(error, reason)) fail_msg("'%s' does not say '%s' of %s", error, reason, header);
    if (strncmp(error, "memory: ", 8) != 0) fail_msg("'%s' does not name the file", error);
    assert_ptr_equal(file, (void *)1);
    free(bytes);
}

#define F32_AT(name, shape, begin, end)                                                                                \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void refusals_by_name(void **state) {
    (void)state;
    refuse("", 0, "not a JSON object");
    refuse(" {}", 0, "not a JSON object");
    refuse("[]", 0, "not a JSON object");
    refuse("{", 0, "not valid JSON");
    refuse("{} {}", 0, "not valid JSON");
    refuse("{\"a\":\"\xff\"}", 0, "not valid JSON");
    refuse("{}", 3, "3 bytes at the end belong to no tensor");
    refuse("{\"a\":7}", 0, "not an object");
    refuse("{\"__metadata__\":7}", 0, "__metadata__ is not an object");
    refuse("{\"__metadata__\":{\"k\":7}}", 0, "'k' is not a string");
    refuse("{" F32_AT("a", "[1]", 0, 4) "," F32_AT("a", "[1]", 4, 8) "}", 8, "duplicate");
    refuse("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no dtype");
    refuse("{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'F33', which is not known");
    refuse("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "no data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "unknown entry 'more'");
    refuse("{" F32_AT("a", "[-1]", 0, 4) "}", 4, "dimension 0 is not a whole number");
    refuse("{" F32_AT("a", "[1.0]", 0, 4) "}", 4, "dimension 0 is not a whole number");
    refuse("{" F32_AT("a", "[1,\"1\"]", 0, 4) "}", 4, "dimension 1 is not a whole number");
    refuse("{" F32_AT("a", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions");
    refuse("{" F32_AT("a", "[4611686018427387904,4]", 0, 0) "}", 0, "larger than any memory");
    refuse("{" F32_AT("a", "[99999999999999999999]", 0, 0) "}", 0, "not valid JSON");
    refuse("{" F32_AT("a", "[2]", 0, 4) "}", 4, "span 4 bytes, but dtype and shape need 8");
    refuse("{" F32_AT("a", "[1]", 0, 4) "}", 3, "do not lie in the 3 bytes");
    refuse("{" F32_AT("a", "[1]", 4, 0) "}", 4, "do not lie");
    refuse("{" F32_AT("a", "[1]", -4, 0) "}", 4, "do not lie");
    refuse("{" F32_AT("a", "[1]", 0, 4) "," F32_AT("b", "[1]", 2, 6) "}", 6, "'b' overlaps another");
    refuse("{" F32_AT("a", "[1]", 0, 4) "," F32_AT("b", "[1]", 0, 4) "}", 4, "overlaps another");
    refuse("{" F32_AT("a", "[1]", 0, 4) "," F32_AT("b", "[1]", 6, 10) "}", 10, "2 bytes before tensor 'b'");
}

static void refuses_bad_lengths(void **state) {
    (void)state;
    unsigned char bytes[12] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}', 0, 0};
    safetensors_file *file;
    for (size_t size = 0; size < 8; size++) {
        assert_int_equal(safetensors_parse(size ? bytes : NULL, size, "memory", &file, error), -1);
        assert_non_null(strstr(error, "memory: not a safetensors file: "));
        assert_non_null(strstr(error, "too few"));
    }
    assert_int_equal(safetensors_parse(bytes, 12, "memory", &file, error), -1);
    assert_non_null(strstr(error, "memory: not a safetensors file: a header of 18446744073709551615 bytes"));
    memset(bytes, 0, 8);
    bytes[0] = 5; /* one more than there are */
    assert_int_equal(safetensors_parse(bytes, 12, "memory", &file, error), -1);
    assert_non_null(strstr(error, "memory: not a safetensors file, or cut short: a header of 5 bytes"));
    assert_int_equal(safetensors_open("/tmp", &file, error), -1);
    assert_non_null(strstr(error, "not a regular file"));
    assert_int_equal(safetensors_open("/tmp/ferry-no-such-file", &file, error), -1);
    assert_non_null(strstr(error, "cannot be opened"));
}

static void writer_refuses(void **state) {
    (void)state;
    const safetensors_tensor twice[] = {sample[0], sample[0]};
    const safetensors_tensor latin[] = {{.name = "\xe4", .dtype = SAFETENSORS_U8, .dims = 1, .shape = {0}}};
    assert_int_equal(safetensors_write(path, twice, 2, NULL, 0, error), -1);
    assert_non_null(strstr(error, "'halves' appears twice"));
    assert_int_equal(safetensors_write(path, latin, 1, NULL, 0, error), -1);
    assert_non_null(strstr(error, "not UTF-8"));
    assert_int_equal(safetensors_write("/tmp/ferry-no-such-folder/x", sample, 1, NULL, 0, error), -1);
    assert_non_null(strstr(error, "cannot be written: No such file or directory"));
    /* Only regular files are replaced, and none of the others is opened: nobody reads the pipe. */
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    const char *const others[] = {"/dev/null", "/dev/full", folder, path};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char wanted[256];
        snprintf(wanted, sizeof wanted, "%s is there and is no regular file; name another file", others[i]);
        assert_int_equal(safetensors_write(others[i], sample, 1, NULL, 0, error), -1);
        assert_string_equal(error, wanted);
    }
    assert_int_equal(unlink(path), 0);
}

static void failed_write_keeps_the_old_file(void **state) {
    (void)state;
    const safetensors_tensor unreadable[] = {
        {.name = "a", .dtype = SAFETENSORS_U8, .dims = 1, .shape = {4096}, .data = (const void *)16}};
    safetensors_file *file = NULL;
    assert_int_equal(safetensors_write(path, sample, SAMPLE_COUNT, NULL, 0, error), 0);
    assert_int_equal(safetensors_write(path, unreadable, 1, NULL, 0, error), -1); /* write() reports a bad address */
    assert_int_equal(safetensors_open(path, &file, error), 0);
    check_sample(file);
    safetensors_close(file);
}

/* ---- Damage ---- */

static uint64_t random_state;
static uint64_t random_below(uint64_t bound) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % bound;
}

/* Touches all that a caller may touch; under a sanitizer a lie of the reader ends the test. */
static unsigned touch(const safetensors_file *file) {
    unsigned sum = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        sum += (unsigned)strlen(t->name);
        for (size_t k = 0; k < t->bytes; k++) sum += ((const unsigned char *)t->data)[k];
    }
    return sum;
}

static void survives_damage(void **state) {
    (void)state;
    static const char pieces[] = "{}[],:\"0123456789-.eE \\u_";
    size_t size;
    int accepted = 0, refused = 0;
    assert_int_equal(safetensors_write(path, sample, SAMPLE_COUNT, pairs, 2, error), 0);
    unsigned char *whole = read_file(&size);
    for (random_state = 0; refused + accepted < 20000;) {
        size_t kept = random_below(4) ? size : random_below(size + 1);
        unsigned char *bytes = malloc(kept + 1); /* the sanitizer watches the end of an exact allocation */
        bytes = realloc(bytes, kept ? kept : 1);
        memcpy(bytes, whole, kept);
        for (uint64_t changes = random_below(4); changes > 0 && kept > 0; changes--) {
            size_t at = random_below(random_below(4) ? kept : kept < 8 ? kept : 8);
            bytes[at] = random_below(2) ? (unsigned char)random_below(256)
                                        : (unsigned char)pieces[random_below(sizeof pieces - 1)];
        }
        safetensors_file *file;
        error[0] = '\0';
        if (safetensors_parse(bytes, kept, "memory", &file, error) == 0) {
            accepted += touch(file) > 0;
            safetensors_close(file);
        } else {
            refused++;
            assert_true(strlen(error) > strlen("memory: "));
        }
        free(bytes);
    }
    free(whole);
    assert_true(accepted > 1000);
    assert_true(refused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(equal_input_gives_equal_bytes),
        cmocka_unit_test(empty_file_of_tensors),
        cmocka_unit_test(unaligned_data_is_copied),
        cmocka_unit_test(refusals_by_name),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(writer_refuses),
        cmocka_unit_test(failed_write_keeps_the_old_file),
        cmocka_unit_test(survives_damage),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
