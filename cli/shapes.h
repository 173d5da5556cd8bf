/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of layers to measure and plan: by name, or as five numbers. */
#ifndef FERRY_CLI_SHAPES_H
#define FERRY_CLI_SHAPES_H

#include <stddef.h>
#include <stdint.h>

typedef struct layer_shape {
    int64_t hidden, intermediate, experts, slots;
    int64_t tokens; /* of each rank */
} layer_shape;

/* Name; hidden, intermediate; experts, 1: of each rank (a slice, one rank's share of a job on many) or 0: of all;
 * slots, no more than experts; tokens of each rank. */
#define SHAPE_MAP(X)                                                                                                   \
    X("kimi-slice", 7168, 2048, 6, 1, 8, 2048)                                                                         \
    X("glm5-slice", 6144, 2048, 4, 1, 8, 2048)                                                                         \
    X("qwen397-slice", 4096, 1024, 8, 1, 10, 2048)                                                                     \
    X("dsv4pro-slice", 7168, 3072, 6, 1, 6, 2048)                                                                      \
    X("qwen3-30b-a3b", 2048, 768, 128, 0, 8, 8192)                                                                     \
    X("olmoe", 2048, 1024, 64, 0, 8, 8192)                                                                             \
    X("mixtral-8x7b", 4096, 14336, 8, 0, 2, 8192)                                                                      \
    X("dsv3-full", 7168, 2048, 256, 0, 8, 8192)

/* An option that takes a shape: its argument and its help. */
#define SHAPE_NAME(name, h, i, e, slice, k, t) name ", "
#define SHAPE_NAMES SHAPE_MAP(SHAPE_NAME)
#define SHAPE_ARGUMENT "NAME|H,I,E,K,T"
#define SHAPE_DEFAULT "kimi-slice"
#define SHAPE_FORMS SHAPE_NAMES "or hidden size, intermediate size, experts, slots of a token, tokens of a rank"
#define SHAPE_SLICES "; a slice is what one rank holds of a model, so its experts grow in number with the ranks"
#define SHAPE_HELP SHAPE_FORMS " (default " SHAPE_DEFAULT ")" SHAPE_SLICES

/* The option that divides a shape, and what a scaled H or I is a multiple of. */
#define SHAPE_SCALE_HELP                                                                                               \
    "divides H, I and T of the shape; H and I are rounded to multiples of 64, at least 64, and T to at least 1"
enum { SHAPE_SCALE_UNIT = 64 };

/* A name or "H,I,E,K,T" as `ranks` ranks see it. 0, or the exit code after a message. */
int shape_parse(const char *text, int ranks, layer_shape *shape);

/* H, I and T divided by `factor` and rounded as the help says. Experts and slots stay, so the routing keeps its form.
 */
layer_shape shape_scaled(layer_shape shape, double factor);

/* Operations of the products of a forward without dropped slots, over all ranks; a backward has twice as many. */
double shape_flop(const layer_shape *shape, int ranks);

#endif
