/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of a given shape with random tokens and weights, and drawn routing. */
#include "cli/launch.h"
#include "cli/message.h"
#include "cli/routing.h"
#include "cli/shapes.h"
#include "cli/trace.h"
#include "rules/bf16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Uniform values of the given standard deviation. */
static void fill_bf16(uint16_t *to, int64_t count, double deviation, uint64_t *state) {
    float scale = (float)(deviation * sqrt(3.0) / 32768);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++, bits >>= 16) {
        if (i % 4 == 0) bits = next_random(state);
        to[i] = fy_bf16_from_f32(scale * (float)((int)(bits & 0xffff) - 32768));
    }
}

/* Takes `bytes` from the block, aligned; `base` NULL only counts. */
static void *take(unsigned char *base, size_t *used, int64_t elements, size_t element_bytes) {
    size_t at = *used;
    *used += ((size_t)elements * element_bytes + 63) / 64 * 64;
    return base ? base + at : NULL;
}

static size_t place(run_problem *p, unsigned char *base) {
    size_t used = 0;
    int64_t rows = p->tokens * p->hidden, weights = p->experts * p->intermediate * p->hidden;
    p->x = take(base, &used, rows, 2);
    p->dout = take(base, &used, rows, 2);
    p->ids = take(base, &used, p->tokens * p->slots, 4);
    p->weights = take(base, &used, p->tokens * p->slots, 4);
    p->gate = take(base, &used, weights, 2);
    p->up = take(base, &used, weights, 2);
    p->down = take(base, &used, weights, 2);
    return used;
}

static int fill(run_problem *p) {
    uint64_t state = 1;
    routing r;
    int code = routing_draw(&r, p->tokens, p->experts, p->slots, 0, state);
    if (code) return code;
    size_t slots = (size_t)(p->tokens * p->slots);
    memcpy((void *)p->ids, r.ids, slots * sizeof *r.ids);
    memcpy((void *)p->weights, r.weights, slots * sizeof *r.weights);
    routing_free(&r);

    int64_t rows = p->tokens * p->hidden, weights = p->experts * p->intermediate * p->hidden;
    fill_bf16((uint16_t *)p->x, rows, 1, &state);
    fill_bf16((uint16_t *)p->dout, rows, 1, &state);
    fill_bf16((uint16_t *)p->gate, weights, 1 / sqrt((double)p->hidden), &state);
    fill_bf16((uint16_t *)p->up, weights, 1 / sqrt((double)p->hidden), &state);
    fill_bf16((uint16_t *)p->down, weights, 1 / sqrt((double)p->intermediate), &state);
    return CLI_OK;
}

int trace_problem_size(run_problem *problem, const trace_options *options) {
    layer_shape s;
    int ranks = options->ranks ? (int)options->ranks : 1;
    int code = shape_parse(options->shape, ranks, &s);
    if (code) return code;
    *problem = (run_problem){.tokens = s.tokens * ranks,
                             .slots = s.slots,
                             .hidden = s.hidden,
                             .intermediate = s.intermediate,
                             .experts = s.experts,
                             .ids_dtype = FERRY_I32,
                             .nranks = ranks,
                             .max_tokens = s.tokens};
    problem->first_token = malloc(((size_t)ranks + 1) * sizeof *problem->first_token);
    if (!problem->first_token) return cli_fail("no memory for %d ranks", ranks);
    for (int r = 0; r <= ranks; r++) problem->first_token[r] = r * s.tokens;
    return CLI_OK;
}

int trace_problem_fill(run_problem *problem, trace_block *block) {
    block->bytes = place(problem, NULL);
    block->memory = cli_shared_alloc(block->bytes);
    if (!block->memory) return cli_fail("no memory for the tensors of the layer (%zu bytes)", block->bytes);
    place(problem, block->memory);
    return fill(problem);
}

void trace_problem_free(run_problem *problem, trace_block *block) {
    free(problem->first_token);
    problem->first_token = NULL;
    cli_shared_free(block->memory, block->bytes);
    block->memory = NULL;
}
