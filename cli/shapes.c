/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to shape, for `ferry bench`, `plan` and `trace`. A slice names the experts of one rank, so they are multiplied
 * by the ranks; five numbers mean what they say.
 */
#include "cli/shapes.h"

#include "cli/message.h"

#include <stdlib.h>
#include <string.h>

typedef struct named_shape {
    const char *name;
    layer_shape shape;
    int slice;
} named_shape;

#define SHAPE_ENTRY(name, h, i, e, slice, k, t) {name, {h, i, e, k, t}, slice},
static const named_shape shapes[] = {SHAPE_MAP(SHAPE_ENTRY)};
enum { SHAPE_COUNT = sizeof shapes / sizeof *shapes };

enum { NUMBERS = 5 };
static const char *const number_names[NUMBERS] = {"H (hidden size)", "I (intermediate size)", "E (experts)",
                                                  "K (slots of a token)", "T (tokens of a rank)"};

static int parse_numbers(const char *text, layer_shape *shape) {
    int64_t *const fields[] = {&shape->hidden, &shape->intermediate, &shape->experts, &shape->slots, &shape->tokens};
    long long value[NUMBERS]; /* what no int64_t holds is its largest or its least */
    const char *next = text;
    for (int i = 0; i < NUMBERS; i++) {
        char *end;
        value[i] = strtoll(next, &end, 10);
        if (end == next || *end != (i < NUMBERS - 1 ? ',' : '\0'))
            return cli_usage("--shape: '%s' is none of " SHAPE_NAMES "or five numbers H,I,E,K,T", text);
        next = end + 1;
    }
    for (int i = 0; i < NUMBERS; i++) {
        int least = fields[i] != &shape->tokens;
        if (value[i] < least || value[i] > INT32_MAX)
            return cli_usage("--shape: %s of '%s' is out of range; expected %d to %d", number_names[i], text, least,
                             INT32_MAX);
        *fields[i] = value[i];
    }
    return CLI_OK;
}

int shape_parse(const char *text, int ranks, layer_shape *shape) {
    for (int i = 0; i < SHAPE_COUNT; i++) {
        if (strcmp(shapes[i].name, text) != 0) continue;
        *shape = shapes[i].shape;
        if (shapes[i].slice) {
            shape->experts *= ranks;
            if (shape->slots > shape->experts) shape->slots = shape->experts;
        }
        return CLI_OK;
    }
    int code = parse_numbers(text, shape);
    if (code) return code;
    if (shape->slots > shape->experts)
        return cli_usage("--shape: %lld slots of a token cannot be different ones of %lld experts",
                         (long long)shape->slots, (long long)shape->experts);
    return CLI_OK;
}

static int64_t divided(int64_t extent, double factor, int64_t unit) {
    int64_t value = (int64_t)((double)extent / factor / (double)unit + 0.5) * unit;
    return value < unit ? unit : value;
}

layer_shape shape_scaled(layer_shape shape, double factor) {
    if (factor == 1) return shape;
    shape.hidden = divided(shape.hidden, factor, SHAPE_SCALE_UNIT);
    shape.intermediate = divided(shape.intermediate, factor, SHAPE_SCALE_UNIT);
    shape.tokens = divided(shape.tokens, factor, 1);
    return shape;
}

double shape_flop(const layer_shape *s, int ranks) {
    return 6.0 * (double)s->hidden * (double)s->intermediate * (double)s->slots * (double)s->tokens * ranks;
}
