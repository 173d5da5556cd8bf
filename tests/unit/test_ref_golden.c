/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle with rounding points against the files of tests/golden, which a second implementation wrote
 * (tools/make_golden.py). Both sum in double, so BF16 outputs are equal and F32 outputs differ by their rounding.
 */
#include "ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { LARGEST = 1 << 20 };

/* A safetensors file: 8 bytes with the header's length, the header, the data. */
typedef struct file {
    char *bytes;
    const char *header; /* ends with a 0 */
    const unsigned char *data;
} file;

typedef struct tensor {
    char dtype[8];
    int64_t shape[3]; /* missing dimensions are 1 */
    int64_t n;
    double *value; /* NULL: not in the file */
} tensor;

static file file_read(const char *name, const char *kind) {
    char path[512];
    const char *here = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../golden/%s.%s.safetensors", (int)(here - __FILE__), __FILE__, name, kind);
    FILE *stream = fopen(path, "rb");
    if (!stream) fail_msg("cannot open %s", path);
    uint64_t length;
    assert_int_equal(fread(&length, 1, 8, stream), 8);
    assert_true(length < LARGEST);
    file f = {.bytes = test_calloc(1, LARGEST)};
    assert_int_equal(fread(f.bytes, 1, length, stream), length);
    f.header = f.bytes; /* the byte after it stays 0 */
    f.data = (unsigned char *)f.bytes + length + 1;
    assert_true(fread(f.bytes + length + 1, 1, LARGEST - length - 1, stream) > 0);
    fclose(stream);
    return f;
}

static double element(const char *dtype, const unsigned char *data, int64_t i) {
    if (strcmp(dtype, "BF16") == 0) {
        uint16_t half;
        memcpy(&half, data + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    if (strcmp(dtype, "F32") == 0) {
        float value;
        memcpy(&value, data + 4 * i, 4);
        return value;
    }
    if (strcmp(dtype, "I32") == 0) {
        int32_t value;
        memcpy(&value, data + 4 * i, 4);
        return value;
    }
    assert_string_equal(dtype, "I64");
    int64_t value;
    memcpy(&value, data + 8 * i, 8);
    return (double)value;
}

static tensor tensor_read(const file *f, const char *name) {
    tensor t = {.shape = {1, 1, 1}, .n = 1};
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"", name);
    const char *at = strstr(f->header, key);
    if (!at) return t;
    assert_int_equal(sscanf(at + strlen(key), "%7[A-Z0-9]", t.dtype), 1);
    at = strstr(at, "\"shape\":[") + strlen("\"shape\":[");
    for (int d = 0; d < 3 && *at != ']'; d++) {
        char *end;
        t.shape[d] = strtoll(at, &end, 10);
        t.n *= t.shape[d];
        at = *end == ',' ? end + 1 : end;
    }
    long long begin;
    assert_int_equal(sscanf(strstr(at, "\"data_offsets\":[") + strlen("\"data_offsets\":["), "%lld", &begin), 1);
    t.value = test_malloc((size_t)t.n * sizeof(double));
    for (int64_t i = 0; i < t.n; i++) t.value[i] = element(t.dtype, f->data + begin, i);
    return t;
}

enum { OUT, DX, DWEIGHTS, DGATE, DUP, DDOWN, DSHARED_GATE, DSHARED_UP, DSHARED_DOWN, OUTPUTS };
static const char *const output_name[OUTPUTS] = {
    "out", "dx", "dweights", "dgate", "dup", "ddown", "dshared_gate", "dshared_up", "dshared_down",
};

static void compare(const char *name, const tensor *wanted, const double *got) {
    int is_bf16 = strcmp(wanted->dtype, "BF16") == 0;
    for (int64_t i = 0; i < wanted->n; i++) {
        double slack = is_bf16 ? 0 : 0x1p-23 * fabs(wanted->value[i]) + 1e-13;
        if (!(fabs(got[i] - wanted->value[i]) <= slack)) {
            fail_msg("%s[%lld]: %.17g, expected %.17g", name, (long long)i, got[i], wanted->value[i]);
        }
    }
}

static void check_golden(const char *name) {
    static const char *const input_name[] = {
        "x", "ids", "weights", "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "dout",
    };
    enum { X, IDS, WEIGHTS, GATE, UP, DOWN, SHARED_GATE, SHARED_UP, SHARED_DOWN, DOUT, INPUTS };
    file in = file_read(name, "in"), out = file_read(name, "out");
    tensor input[INPUTS];
    for (int i = 0; i < INPUTS; i++) input[i] = tensor_read(&in, input_name[i]);
    int64_t *ids = test_malloc((size_t)input[IDS].n * sizeof *ids);
    for (int64_t i = 0; i < input[IDS].n; i++) ids[i] = (int64_t)input[IDS].value[i];
    double limit;
    const char *limit_at = strstr(in.header, "\"swiglu_limit\":\"");
    assert_non_null(limit_at);
    assert_int_equal(sscanf(limit_at, "\"swiglu_limit\":\"%lf\"", &limit), 1);

    fy_ref_problem problem = {
        .tokens = input[X].shape[0],
        .hidden = input[X].shape[1],
        .intermediate = input[GATE].shape[1],
        .shared = input[SHARED_GATE].value ? input[SHARED_GATE].shape[0] : 0,
        .experts = input[GATE].shape[0],
        .slots = input[IDS].shape[1],
        .limit = (double)(float)limit,
        .mode = FY_REF_POINTS,
        .x = input[X].value,
        .ids = ids,
        .weights = input[WEIGHTS].value,
        .gate = input[GATE].value,
        .up = input[UP].value,
        .down = input[DOWN].value,
        .shared_gate = input[SHARED_GATE].value,
        .shared_up = input[SHARED_UP].value,
        .shared_down = input[SHARED_DOWN].value,
        .dout = input[DOUT].value,
    };
    tensor wanted[OUTPUTS];
    double *got[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) {
        wanted[i] = tensor_read(&out, output_name[i]);
        int expected = i == OUT || (problem.dout && (i < DSHARED_GATE || problem.shared > 0));
        assert_int_equal(wanted[i].value != NULL, expected);
        got[i] = expected ? test_malloc((size_t)wanted[i].n * sizeof(double)) : NULL;
        for (int64_t j = 0; expected && j < wanted[i].n; j++) got[i][j] = NAN;
    }
    fy_ref_result result = {
        .out = got[OUT],
        .dx = got[DX],
        .dweights = got[DWEIGHTS],
        .dgate = got[DGATE],
        .dup = got[DUP],
        .ddown = got[DDOWN],
        .dshared_gate = got[DSHARED_GATE],
        .dshared_up = got[DSHARED_UP],
        .dshared_down = got[DSHARED_DOWN],
    };
    assert_int_equal(fy_ref_layer(&problem, &result), 0);
    for (int i = 0; i < OUTPUTS; i++) {
        if (got[i]) compare(output_name[i], &wanted[i], got[i]);
        test_free(got[i]);
        test_free(wanted[i].value);
    }
    for (int i = 0; i < INPUTS; i++) test_free(input[i].value);
    test_free(ids);
    test_free(in.bytes);
    test_free(out.bytes);
}

static void plain(void **state) {
    (void)state;
    check_golden("plain");
}

static void shared_limit(void **state) {
    (void)state;
    check_golden("shared_limit");
}

static void forward(void **state) {
    (void)state;
    check_golden("forward");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(shared_limit),
        cmocka_unit_test(forward),
    };
    return cmocka_run_group_tests_name("ref_golden", tests, NULL, NULL);
}
