/* SPDX-License-Identifier: Apache-2.0 */
/* Values, routings and the global batch. */
#include "cli/check/problem.h"

#include "cli/message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values ---- */

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t check_bits(uint64_t seed, int key, int64_t index) {
    return mix(mix(mix(seed + 0x9e3779b97f4a7c15u) + (uint64_t)key) + (uint64_t)index);
}

int64_t check_below(uint64_t seed, int key, int64_t index, int64_t n) {
    return (int64_t)((check_bits(seed, key, index) >> 11) % (uint64_t)n);
}

uint16_t check_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float check_widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Four uniform numbers make a hump with tails: extremes occur, but not so large that they hide the rest. */
static double hump(uint64_t seed, int key, int64_t index) {
    uint64_t bits = check_bits(seed, key, index);
    int64_t sum = 0;
    for (int part = 0; part < 4; part++) sum += (int64_t)(bits >> 16 * part & 0xffff);
    return ((double)sum / 65536 - 2) * 1.7320508075688772;
}

float check_unit(uint64_t seed, int key, int64_t index) {
    return check_widen(check_bf16((float)hump(seed, key, index)));
}

/* n values of variance scale^2 in BF16, from index `first` on; NULL when memory ran out. */
static uint16_t *make_values(uint64_t seed, int key, int64_t first, int64_t n, double scale) {
    uint16_t *values = malloc((size_t)n * sizeof *values + 1);
    for (int64_t i = 0; i < n && values; i++) values[i] = check_bf16((float)(scale * hump(seed, key, first + i)));
    return values;
}

/* ---- Routing ---- */

static int64_t draw(const check_problem *p, int64_t token, int64_t slot, int64_t n) {
    return check_below(p->seed, CHECK_IDS, token * p->slots + slot, n);
}

int64_t check_route_random(const check_problem *p, int64_t token, int64_t slot) {
    return draw(p, token, slot, p->experts);
}

int64_t check_route_distinct(const check_problem *p, int64_t token, int64_t slot) {
    return (draw(p, token, 0, p->experts) + slot) % p->experts;
}

int64_t check_route_skewed(const check_problem *p, int64_t token, int64_t slot) {
    double u = (double)draw(p, token, slot, 1 << 20) / (1 << 20);
    return (int64_t)((double)p->experts * u * u * u);
}

int64_t check_route_holes(const check_problem *p, int64_t token, int64_t slot) {
    int64_t id = draw(p, token, slot, p->experts + (p->experts + 2) / 3);
    return id < p->experts ? id : -1;
}

int64_t check_route_one(const check_problem *p, int64_t token, int64_t slot) {
    (void)token, (void)slot;
    return p->route_number;
}

int64_t check_route_same(const check_problem *p, int64_t token, int64_t slot) {
    (void)token;
    return slot % p->experts;
}

int64_t check_route_none(const check_problem *p, int64_t token, int64_t slot) {
    (void)p, (void)token, (void)slot;
    return -1;
}

/* ---- The batch ---- */

static int make_slots(const check_problem *p, check_batch *batch) {
    int64_t n = p->tokens * p->slots;
    check_route *route = p->route ? p->route : check_route_random;
    batch->ids = malloc((size_t)n * sizeof *batch->ids + 1);
    batch->weights = malloc((size_t)n * sizeof *batch->weights + 1);
    if (!batch->ids || !batch->weights) return 0;
    for (int64_t i = 0; i < n; i++) {
        batch->ids[i] = route(p, p->first + i / p->slots, i % p->slots);
        batch->weights[i] = check_unit(p->seed, CHECK_WEIGHTS, p->first * p->slots + i);
    }
    return 1;
}

/* After the edit, which may change ids. */
static void close_slots(check_batch *batch) {
    const check_problem *p = &batch->problem;
    for (int64_t i = 0; i < p->tokens * p->slots; i++) {
        int64_t id = batch->ids[i];
        if (id < -1 || id >= p->experts) batch->bad_ids++;
        if (id < 0 || id >= p->experts) batch->weights[i] = NAN;
    }
}

int check_batch_make(const check_problem *p, check_batch *batch) {
    *batch = (check_batch){.problem = *p};
    int64_t rows = p->tokens * p->hidden, routed = p->experts * p->intermediate * p->hidden;
    int64_t shared = p->shared * p->hidden;
    double by_hidden = 1 / sqrt((double)p->hidden), by_width = 1 / sqrt((double)p->intermediate);
    double by_shared = p->shared ? 1 / sqrt((double)p->shared) : 0;
    struct {
        uint16_t **to;
        int key;
        int64_t first, n;
        double scale;
    } const parts[] = {
        {&batch->x, CHECK_X, p->first * p->hidden, rows, 1},
        {&batch->dout, CHECK_DOUT, p->first * p->hidden, rows, 1},
        {&batch->gate, CHECK_GATE, 0, routed, by_hidden},
        {&batch->up, CHECK_UP, 0, routed, 2 * by_hidden}, /* the gate halves it again */
        {&batch->down, CHECK_DOWN, 0, routed, by_width},
        {&batch->shared_gate, CHECK_SHARED_GATE, 0, shared, by_hidden},
        {&batch->shared_up, CHECK_SHARED_UP, 0, shared, 2 * by_hidden},
        {&batch->shared_down, CHECK_SHARED_DOWN, 0, shared, by_shared},
    };
    int made = make_slots(p, batch);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && made; i++) {
        *parts[i].to = make_values(p->seed, parts[i].key, parts[i].first, parts[i].n, parts[i].scale);
        made = *parts[i].to != NULL;
    }
    if (!made) {
        check_batch_free(batch);
        cli_note("no memory for a batch of %lld tokens", (long long)p->tokens);
        return 0;
    }
    if (p->edit) p->edit(batch);
    close_slots(batch);
    return 1;
}

void check_batch_free(check_batch *batch) {
    free(batch->x);
    free(batch->dout);
    free(batch->ids);
    free(batch->weights);
    free(batch->gate);
    free(batch->up);
    free(batch->down);
    free(batch->shared_gate);
    free(batch->shared_up);
    free(batch->shared_down);
    *batch = (check_batch){0};
}
