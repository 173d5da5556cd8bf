/* SPDX-License-Identifier: Apache-2.0 */
/* Results and their comparison. */
#include "cli/check/result.h"

#include "cli/launch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[CHECK_TENSOR_COUNT] = {
#define CHECK_TENSOR_TEXT(ID, name) name,
    CHECK_TENSORS(CHECK_TENSOR_TEXT)
#undef CHECK_TENSOR_TEXT
};

const char *check_tensor_name(check_tensor_id id) { return names[id]; }

size_t check_dtype_bytes(ferry_dtype dtype) {
    switch (dtype) {
    case FERRY_BF16:
    case FERRY_F16:
        return 2;
    case FERRY_F32:
    case FERRY_I32:
        return 4;
    case FERRY_F64:
    case FERRY_I64:
        return 8;
    }
    return 0;
}

double check_value(const check_tensor *tensor, int64_t index) {
    const unsigned char *at = tensor->data + (size_t)index * check_dtype_bytes(tensor->dtype);
    uint16_t narrow;
    float single;
    double wide;
    switch (tensor->dtype) {
    case FERRY_BF16:
        memcpy(&narrow, at, sizeof narrow);
        return (double)check_widen(narrow);
    case FERRY_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    default:
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
}

float check_old_gradient(const check_problem *problem, const check_way *way, check_tensor_id id, int64_t index) {
    if (way->old) return (float)check_value(&way->old->tensor[id], index);
    return check_unit(problem->seed, CHECK_OLD + (int)id, index);
}

/* ---- Making ---- */

static void set_dims(check_result *result, const check_problem *p, const check_way *way, ferry_dtype all) {
    ferry_dtype gradient = all ? all : way->grad_dtype ? way->grad_dtype : FERRY_F32;
    ferry_dtype narrow = all ? all : FERRY_BF16, single = all ? all : FERRY_F32;
    int64_t n = p->tokens, h = p->hidden, i = p->intermediate, s = p->shared, r = check_way_ranks(way);
    check_tensor *t = result->tensor;
    t[CHECK_OUT] = (check_tensor){narrow, {1, n, h}, 0, NULL};
    if (!p->forward_only) {
        t[CHECK_DX] = t[CHECK_OUT];
        t[CHECK_DWEIGHTS] = (check_tensor){single, {1, n, p->slots}, 0, NULL};
        t[CHECK_DGATE] = t[CHECK_DUP] = (check_tensor){gradient, {p->experts, i, h}, 0, NULL};
        t[CHECK_DDOWN] = (check_tensor){gradient, {p->experts, h, i}, 0, NULL};
        t[CHECK_DSHARED_GATE] = t[CHECK_DSHARED_UP] = (check_tensor){gradient, {r, s, h}, 0, NULL};
        t[CHECK_DSHARED_DOWN] = (check_tensor){gradient, {r, h, s}, 0, NULL};
    }
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) t[id].count = t[id].dims[0] * t[id].dims[1] * t[id].dims[2];
}

static size_t tensor_bytes(const check_tensor *tensor) {
    return ((size_t)tensor->count * check_dtype_bytes(tensor->dtype) + 63) / 64 * 64;
}

static size_t result_bytes(const check_result *result) {
    size_t bytes = (sizeof *result + 63) / 64 * 64;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) bytes += tensor_bytes(&result->tensor[id]);
    return bytes;
}

check_result *check_result_make(const check_case *c, const check_batch *batch, const check_way *way,
                                ferry_dtype dtype) {
    check_result shape = {0};
    set_dims(&shape, &batch->problem, way, dtype);
    size_t bytes = result_bytes(&shape);
    check_result *result = cli_shared_alloc(bytes);
    CHECK_OR_RETURN(NULL, c, result, "no memory for results of %zu bytes", bytes);
    *result = shape;
    unsigned char *at = (unsigned char *)result + (sizeof *result + 63) / 64 * 64;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        result->tensor[id].data = at;
        memset(at, 0xff, tensor_bytes(&result->tensor[id]));
        at += tensor_bytes(&result->tensor[id]);
    }
    return result;
}

void check_result_free(check_result *result) {
    if (result) cli_shared_free(result, result_bytes(result));
}

/* ---- Comparing ---- */

/* "dgate[3][0][17]"; the leading dimension is left out where it is 1. */
static void coordinate(const check_tensor *tensor, check_tensor_id id, int64_t index, char *to, size_t room) {
    int64_t column = index % tensor->dims[2], row = index / tensor->dims[2] % tensor->dims[1];
    int64_t matrix = index / tensor->dims[2] / tensor->dims[1];
    if (tensor->dims[0] == 1) {
        snprintf(to, room, "%s[%lld][%lld]", names[id], (long long)row, (long long)column);
    } else {
        snprintf(to, room, "%s[%lld][%lld][%lld]", names[id], (long long)matrix, (long long)row, (long long)column);
    }
}

double check_error(const check_tensor *got, const check_tensor *want, int special, int64_t *worst) {
    double difference = 0, norm = 0, largest = -1;
    *worst = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double g = check_value(got, i), w = check_value(want, i);
        if (!isfinite(g) || !isfinite(w)) {
            *worst = i;
            if (special && !isfinite(g) && !isfinite(w)) continue;
            return INFINITY;
        }
        if (fabs(g - w) > largest) {
            largest = fabs(g - w);
            *worst = i;
        }
        difference += (g - w) * (g - w);
        norm += w * w;
    }
    if (norm > 0) return sqrt(difference / norm);
    return difference > 0 ? INFINITY : 0; /* zeros are exact */
}

void check_near(const check_case *c, const check_result *got, const check_result *want, int special, double out_bound,
                double gradient_bound, const char *against) {
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        const check_tensor *g = &got->tensor[id], *w = &want->tensor[id];
        double bound = id == CHECK_OUT ? out_bound : gradient_bound;
        int64_t worst;
        double error = check_error(g, w, special, &worst);
        if (error <= bound) continue;
        char where[96];
        coordinate(g, (check_tensor_id)id, worst, where, sizeof where);
        check_fail(c, "%s: relative error %.3g against %s, bound %g; worst at %s: %.9g, expected %.9g", names[id],
                   error, against, bound, where, check_value(g, worst), check_value(w, worst));
        return;
    }
}

void check_against_reference(const check_case *c, const check_batch *batch, const check_way *way,
                             const check_result *got) {
    const check_problem *p = &batch->problem;
    double points_bound = way->backend == FERRY_CUDA ? 2e-3 : 1e-3;
    check_result *points = check_reference(c, batch, way, FY_REF_POINTS);
    if (points) check_near(c, got, points, p->special, points_bound, points_bound, "the rounded reference");
    check_result_free(points);
    if (p->special || p->tokens * p->slots < 64 || p->hidden < 64 || p->intermediate < 64) return;
    check_result *exact = check_reference(c, batch, way, FY_REF_EXACT);
    if (exact) check_near(c, got, exact, 0, 4e-3, 6e-3, "the exact reference");
    check_result_free(exact);
}

void check_same_bits(const check_case *c, const check_result *a, const check_result *b, const char *what) {
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        const check_tensor *s = &a->tensor[id], *t = &b->tensor[id];
        if (id >= CHECK_DSHARED_GATE && s->dims[0] != t->dims[0]) continue;
        size_t element = check_dtype_bytes(s->dtype);
        CHECK_OR_RETURN(, c, s->count == t->count && s->dtype == t->dtype, "%s: %s has another shape", what, names[id]);
        for (int64_t i = 0; i < s->count; i++) {
            if (memcmp(s->data + (size_t)i * element, t->data + (size_t)i * element, element) == 0) continue;
            char where[96];
            coordinate(s, (check_tensor_id)id, i, where, sizeof where);
            check_fail(c, "%s: other bits, first at %s: %.9g (%a) and %.9g (%a)", what, where, check_value(s, i),
                       check_value(s, i), check_value(t, i), check_value(t, i));
            return;
        }
    }
}
