/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logits come from a counter-based generator keyed by seed, token and expert, so no draw depends on another.
 * `ferry bench`, `plan` and `trace` draw; the first two also read what `ferry train` has written.
 */
#include "cli/routing.h"

#include "cli/message.h"
#include "cli/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static int allocate(routing *r, int64_t tokens, int64_t slots) {
    size_t count = (size_t)tokens * (size_t)slots;
    *r = (routing){tokens, slots, malloc(count * sizeof(int32_t) + 1), malloc(count * sizeof(float) + 1)};
    if (r->ids && r->weights) return CLI_OK;
    routing_free(r);
    return cli_fail("no memory for the routing of %" PRId64 " tokens", tokens);
}

void routing_free(routing *r) {
    free(r->ids);
    free(r->weights);
    *r = (routing){0};
}

/* ---- Drawing ---- */

static uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A counter-based generator: 64 bits that depend on the key and the counter alone. */
static uint64_t bits_of(uint64_t key, uint64_t counter) {
    return mixed(mixed(counter * 0x9e3779b97f4a7c15u + key) ^ key);
}

/* A standard normal number (Box and Muller). */
static double normal_of(uint64_t key, uint64_t counter) {
    double radius = ((double)(bits_of(key, 2 * counter) >> 11) + 1) * 0x1p-53; /* 0 < radius <= 1 */
    double angle = (double)(bits_of(key, 2 * counter + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(radius)) * cos(6.283185307179586 * angle);
}

/* The `slots` largest logits, largest first; of equal ones the lower expert. */
static void take_largest(const double *logits, int64_t experts, int64_t slots, int32_t *ids, double *values) {
    int64_t taken = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (taken == slots && logits[e] <= values[slots - 1]) continue;
        int64_t at = taken < slots ? taken++ : slots - 1;
        for (; at > 0 && values[at - 1] < logits[e]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = logits[e];
        ids[at] = (int32_t)e;
    }
}

/* Softmax over all experts and division by the sum of the chosen ones: the softmax over the chosen ones. */
static void weigh(const double *values, int64_t slots, float *weights) {
    double sum = 0;
    for (int64_t k = 0; k < slots; k++) sum += exp(values[k] - values[0]);
    for (int64_t k = 0; k < slots; k++) weights[k] = (float)(exp(values[k] - values[0]) / sum);
}

int routing_draw(routing *r, int64_t tokens, int64_t experts, int64_t slots, double skew, uint64_t seed) {
    int code = allocate(r, tokens, slots);
    if (code) return code;
    double *bias = malloc((size_t)(2 * experts + slots) * sizeof *bias);
    if (!bias) {
        routing_free(r);
        return cli_fail("no memory for the routing of %" PRId64 " experts", experts);
    }
    double *logits = bias + experts, *values = logits + experts;
    uint64_t token_key = mixed(seed + 1), expert_key = mixed(token_key + 1);
    for (int64_t e = 0; e < experts; e++) bias[e] = skew * normal_of(expert_key, (uint64_t)e);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t e = 0; e < experts; e++)
            logits[e] = normal_of(mixed(token_key + (uint64_t)t), (uint64_t)e) + bias[e];
        take_largest(logits, experts, slots, r->ids + t * slots, values);
        weigh(values, slots, r->weights + t * slots);
    }
    free(bias);
    return CLI_OK;
}

/* ---- Files ---- */

static int copy_ids(routing *r, const safetensors_tensor *ids, int64_t experts, const char *path) {
    for (int64_t i = 0; i < r->tokens * r->slots; i++) {
        int64_t id = ids->dtype == SAFETENSORS_I64 ? ((const int64_t *)ids->data)[i] : ((const int32_t *)ids->data)[i];
        if (id < -1 || id >= experts)
            return cli_fail("%s: the id of token %" PRId64 ", slot %" PRId64 " is %" PRId64 "; expected -1 to %" PRId64,
                            path, i / r->slots, i % r->slots, id, experts - 1);
        r->ids[i] = (int32_t)id;
    }
    return CLI_OK;
}

static int copy_tensors(routing *r, const safetensors_file *file, int64_t experts, const char *path) {
    const safetensors_tensor *ids = safetensors_find(file, "ids"), *weights = safetensors_find(file, "weights");
    if (!ids || !weights) return cli_fail("%s: tensor '%s' is missing", path, ids ? "weights" : "ids");
    if (ids->dims != 2 || (ids->dtype != SAFETENSORS_I32 && ids->dtype != SAFETENSORS_I64) || ids->shape[1] < 1)
        return cli_fail("%s: tensor 'ids' is not I32 or I64 [N,K]", path);
    if (weights->dims != 2 || weights->dtype != SAFETENSORS_F32 || weights->shape[0] != ids->shape[0] ||
        weights->shape[1] != ids->shape[1])
        return cli_fail("%s: tensor 'weights' is not F32 of the shape of 'ids'", path);
    int code = allocate(r, ids->shape[0], ids->shape[1]);
    if (code) return code;
    for (int64_t i = 0; i < r->tokens * r->slots; i++) r->weights[i] = ((const float *)weights->data)[i];
    code = copy_ids(r, ids, experts, path);
    if (code) routing_free(r);
    return code;
}

int routing_read(routing *r, const char *path, int64_t experts) {
    char error[SAFETENSORS_ERROR_BYTES];
    safetensors_file *file;
    if (safetensors_open(path, &file, error)) return cli_fail("%s", error);
    int code = copy_tensors(r, file, experts, path);
    safetensors_close(file);
    return code;
}

int routing_read_for(routing *r, const char *path, const char *name, const layer_shape *shape) {
    int code = routing_read(r, path, shape->experts);
    if (code || r->slots == shape->slots) return code;
    int64_t slots = r->slots;
    routing_free(r);
    return cli_usage("--shape %s has %" PRId64 " slots of a token, %s has %" PRId64
                     "; give a shape with as many as the file",
                     name, shape->slots, path, slots);
}

int routing_write(const routing *r, const char *path) {
    char error[SAFETENSORS_ERROR_BYTES];
    const safetensors_tensor tensors[] = {
        {.name = "ids", .dtype = SAFETENSORS_I32, .dims = 2, .shape = {r->tokens, r->slots}, .data = r->ids},
        {.name = "weights", .dtype = SAFETENSORS_F32, .dims = 2, .shape = {r->tokens, r->slots}, .data = r->weights}};
    return safetensors_write(path, tensors, 2, NULL, 0, error) ? cli_fail("%s", error) : CLI_OK;
}
