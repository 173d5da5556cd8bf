/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the scripts beside this file need:
 *
 *     tensor_tool make FILE KEY=VALUE...   inputs of `ferry run`, random at unit scale; keys and defaults below
 *     tensor_tool names FILE               a line per tensor, sorted: name, dtype, shape
 *     tensor_tool equal A B                whether both hold the same tensors with the same bits
 *     tensor_tool near A B BOUND           whether every tensor of B is in A, at most BOUND apart in relative L2
 *
 * Ends with 0 for yes, 1 with a reason for no, 2 for a bad command line.
 */
#include "cli/safetensors.h"
#include "rules/bf16.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- make ---- */

typedef struct make_keys {
    int64_t N, K, H, I, E, S, seed, dout, wide; /* wide: ids are I64 */
    int64_t one;                                /* every slot goes to expert 0 */
    int64_t none;                               /* all ids -1 */
    int64_t bad_token, bad_slot;                /* an id of E + 7 there; -1: none */
    int64_t split[16], ranks;                   /* tokens_per_rank */
} make_keys;

static uint64_t random_state;

static double uniform(void) { /* 0 <= u < 1 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Variance 1: a sum of uniform numbers is normal enough here. */
static double normal(void) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += uniform();
    return sum;
}

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes + 1);
    if (!memory) exit(1);
    return memory;
}

static const void *random_bf16(int64_t count, double scale) {
    uint16_t *values = allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = fy_bf16_from_f32((float)(scale * normal()));
    return values;
}

static const void *random_weights(int64_t count) {
    float *values = allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = (float)uniform();
    return values;
}

static const void *random_ids(const make_keys *k) {
    int64_t count = k->N * k->K;
    void *ids = allocate((size_t)count * sizeof(int64_t));
    for (int64_t i = 0; i < count; i++) {
        int64_t id = k->none ? -1 : k->one ? 0 : (int64_t)(uniform() * (double)(k->E + 1)) - 1;
        if (k->bad_token >= 0 && i == k->bad_token * k->K + k->bad_slot) id = k->E + 7;
        if (k->wide) {
            ((int64_t *)ids)[i] = id;
        } else {
            ((int32_t *)ids)[i] = (int32_t)id;
        }
    }
    return ids;
}

static int parse_key(make_keys *k, const char *text) {
    const struct {
        const char *name;
        int64_t *value;
    } keys[] = {{"N", &k->N},
                {"K", &k->K},
                {"H", &k->H},
                {"I", &k->I},
                {"E", &k->E},
                {"S", &k->S},
                {"seed", &k->seed},
                {"dout", &k->dout},
                {"wide", &k->wide},
                {"one", &k->one},
                {"none", &k->none},
                {"bad_token", &k->bad_token},
                {"bad_slot", &k->bad_slot}};
    const char *equals = strchr(text, '=');
    if (equals && strncmp(text, "split=", 6) == 0) {
        for (const char *next = equals; next && k->ranks < 16; next = strchr(next + 1, ',')) {
            k->split[k->ranks++] = atoll(next + 1);
        }
        return 0;
    }
    for (size_t i = 0; equals && i < sizeof keys / sizeof *keys; i++) {
        if (strlen(keys[i].name) == (size_t)(equals - text) &&
            strncmp(keys[i].name, text, (size_t)(equals - text)) == 0) {
            *keys[i].value = atoll(equals + 1);
            return 0;
        }
    }
    fprintf(stderr, "tensor_tool: unknown key '%s'\n", text);
    return 2;
}

static int make(const char *path, int count, char **texts) {
    make_keys k = {.N = 24, .K = 2, .H = 32, .I = 24, .E = 6, .dout = 1, .seed = 1, .bad_token = -1};
    for (int i = 0; i < count; i++) {
        if (parse_key(&k, texts[i])) return 2;
    }
    random_state = (uint64_t)k.seed << 32;
    double by_hidden = 1 / sqrt((double)k.H), by_inner = 1 / sqrt((double)k.I);
    safetensors_tensor tensors[12];
    size_t n = 0;
#define ADD(label, type, data_, ...)                                                                                   \
    tensors[n++] = (safetensors_tensor){.name = label,                                                                 \
                                        .dtype = SAFETENSORS_##type,                                                   \
                                        .dims = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),             \
                                        .shape = {__VA_ARGS__},                                                        \
                                        .data = data_}
    ADD("x", BF16, random_bf16(k.N * k.H, 1), k.N, k.H);
    ADD("weights", F32, random_weights(k.N * k.K), k.N, k.K);
    ADD("gate", BF16, random_bf16(k.E * k.I * k.H, by_hidden), k.E, k.I, k.H);
    ADD("up", BF16, random_bf16(k.E * k.I * k.H, by_hidden), k.E, k.I, k.H);
    ADD("down", BF16, random_bf16(k.E * k.H * k.I, by_inner), k.E, k.H, k.I);
    ADD("ids", I32, random_ids(&k), k.N, k.K);
    if (k.wide) tensors[n - 1].dtype = SAFETENSORS_I64;
    if (k.dout) ADD("dout", BF16, random_bf16(k.N * k.H, 1), k.N, k.H);
    if (k.S) {
        ADD("shared_gate", BF16, random_bf16(k.S * k.H, by_hidden), k.S, k.H);
        ADD("shared_up", BF16, random_bf16(k.S * k.H, by_hidden), k.S, k.H);
        ADD("shared_down", BF16, random_bf16(k.S * k.H, 1 / sqrt((double)k.S)), k.H, k.S);
    }
    int32_t split[16];
    for (int r = 0; r < k.ranks; r++) split[r] = (int32_t)k.split[r];
    if (k.ranks) ADD("tokens_per_rank", I32, split, k.ranks);
#undef ADD
    char error[SAFETENSORS_ERROR_BYTES];
    int code = safetensors_write(path, tensors, n, NULL, 0, error) ? 1 : 0;
    if (code) fprintf(stderr, "tensor_tool: %s\n", error);
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].data != (const void *)split) free((void *)tensors[i].data);
    }
    return code;
}

/* ---- The others ---- */

static safetensors_file *open_file(const char *path) {
    char error[SAFETENSORS_ERROR_BYTES];
    safetensors_file *file;
    if (safetensors_open(path, &file, error) == 0) return file;
    fprintf(stderr, "tensor_tool: %s\n", error);
    exit(1);
}

static int same_kind(const safetensors_tensor *a, const safetensors_tensor *b) {
    return a && b && a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const safetensors_tensor *const *)a)->name, (*(const safetensors_tensor *const *)b)->name);
}

static void names(const safetensors_file *file) {
    const safetensors_tensor *order[64];
    size_t count = safetensors_count(file) < 64 ? safetensors_count(file) : 64;
    for (size_t i = 0; i < count; i++) order[i] = safetensors_at(file, i);
    qsort(order, count, sizeof *order, compare_names);
    for (size_t i = 0; i < count; i++) {
        printf("%s %s", order[i]->name, safetensors_dtype_name(order[i]->dtype));
        for (int d = 0; d < order[i]->dims; d++) printf("%c%" PRId64, d ? 'x' : ' ', order[i]->shape[d]);
        printf("\n");
    }
}

static int equal(const safetensors_file *a, const safetensors_file *b) {
    int code = safetensors_count(a) != safetensors_count(b);
    if (code) printf("%zu tensors against %zu\n", safetensors_count(a), safetensors_count(b));
    for (size_t i = 0; i < safetensors_count(a); i++) {
        const safetensors_tensor *left = safetensors_at(a, i), *right = safetensors_find(b, left->name);
        if (!same_kind(left, right)) {
            printf("%s: absent or of another dtype or shape\n", left->name);
            code = 1;
            continue;
        }
        size_t at = 0;
        const unsigned char *l = left->data, *r = right->data;
        while (at < left->bytes && l[at] == r[at]) at++;
        if (at == left->bytes) continue;
        printf("%s: differs first at element %zu\n", left->name, at / safetensors_dtype_bytes(left->dtype));
        code = 1;
    }
    return code;
}

static double element(const safetensors_tensor *tensor, size_t index) {
    if (tensor->dtype == SAFETENSORS_F32) return ((const float *)tensor->data)[index];
    if (tensor->dtype == SAFETENSORS_BF16) return fy_bf16_to_f32(((const uint16_t *)tensor->data)[index]);
    fprintf(stderr, "tensor_tool: near is for F32 and BF16 only\n");
    exit(2);
}

/* NaN differs from every number and equals NaN. */
static double distance(const safetensors_tensor *a, const safetensors_tensor *b) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < b->bytes / safetensors_dtype_bytes(b->dtype); i++) {
        double left = element(a, i), right = element(b, i);
        if (isnan(left) && isnan(right)) continue;
        apart += (left - right) * (left - right);
        size += right * right;
    }
    return apart == 0 ? 0 : sqrt(apart / size);
}

static int near(const safetensors_file *a, const safetensors_file *b, double bound) {
    int code = 0;
    for (size_t i = 0; i < safetensors_count(b); i++) {
        const safetensors_tensor *right = safetensors_at(b, i), *left = safetensors_find(a, right->name);
        double apart = same_kind(left, right) ? distance(left, right) : INFINITY;
        if (apart <= bound) continue;
        printf("%s: relative L2 distance %g, bound %g\n", right->name, apart, bound);
        code = 1;
    }
    return code;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (strcmp(what, "make") == 0) return make(argv[2], argc - 3, argv + 3);
    int files = strcmp(what, "names") == 0 && argc == 3                                                 ? 1
                : (strcmp(what, "equal") == 0 && argc == 4) || (strcmp(what, "near") == 0 && argc == 5) ? 2
                                                                                                        : 0;
    if (files == 0) {
        fprintf(stderr, "Usage: tensor_tool make FILE KEY=VALUE... | names FILE | equal A B | near A B BOUND\n");
        return 2;
    }
    safetensors_file *a = open_file(argv[2]), *b = files == 2 ? open_file(argv[3]) : NULL;
    int code = 0;
    if (files == 1) names(a);
    if (files == 2) code = argc == 4 ? equal(a, b) : near(a, b, atof(argv[4]));
    safetensors_close(a);
    safetensors_close(b);
    return code;
}
