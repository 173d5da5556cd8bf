/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of everything in the four regions, one function each, in the order in which it lies there. */
#include "cpu/layout.h"

#include "cpu/product.h"
#include "cpu/state.h"
#include "rules/ring.h"

int64_t fy_tiles(int64_t columns) { return fy_divide_up(columns, FY_TILE_COLUMNS); }

/* A region that would reach the limit stays there. */
static int64_t take(int64_t *bytes, int64_t count, int64_t size) {
    int64_t offset = *bytes, more;
    if (__builtin_mul_overflow(count, size, &more) || more > FY_LAYOUT_LIMIT - offset) more = FY_LAYOUT_LIMIT - offset;
    *bytes = fy_divide_up(offset + more, 64) * 64;
    return offset;
}

static fy_schedule_layout schedule_layout(const fy_shape *s) {
    fy_schedule_layout l = {.bytes = 0};
    int64_t rows = s->max_blocks * FY_BLOCK_ROWS, slots = s->max_tokens * s->slots;
    l.tokens = take(&l.bytes, s->nranks, sizeof(int64_t));
    l.rows = take(&l.bytes, s->local_experts, sizeof(int64_t));
    l.first_block = take(&l.bytes, s->local_experts + 1, sizeof(int64_t));
    l.source_base = take(&l.bytes, s->local_experts * (s->nranks + 1), sizeof(int64_t));
    l.row = take(&l.bytes, rows, sizeof(fy_row));
    l.leader = take(&l.bytes, rows, sizeof(int32_t));
    l.ids = take(&l.bytes, slots, sizeof(int32_t));
    l.weights = take(&l.bytes, slots, sizeof(float));
    return l;
}

static void symmetric(fy_layout *l, const fy_shape *s) {
    int64_t *b = &l->symmetric.bytes, slots = s->max_tokens * s->slots;
    l->symmetric.published = take(b, 2, sizeof(fy_published));
    l->symmetric.progress = take(b, 1, 64);
    l->symmetric.counts = take(b, 2 * s->experts, sizeof(int32_t));
    l->symmetric.ids = take(b, 2 * slots, sizeof(int32_t));
    l->symmetric.position = take(b, 2 * slots, sizeof(int32_t));
    l->symmetric.weights = take(b, slots, sizeof(float));
    l->symmetric.arrived = take(b, slots, sizeof(uint64_t));
    l->symmetric.dweights = take(b, slots, sizeof(float));
    l->symmetric.x = take(b, s->max_tokens * s->hidden, sizeof(uint16_t));
    l->symmetric.dout = take(b, s->max_tokens * s->hidden, sizeof(uint16_t));
    l->symmetric.slots = take(b, slots * s->hidden, sizeof(uint16_t));
}

static void ring(fy_layout *l, const fy_shape *s) {
    int64_t *b = &l->ring.bytes, r = s->ring_rows, h = s->hidden, i = s->intermediate;
    if (s->local_experts == 0) return;
    l->ring.x = take(b, r * h, sizeof(uint16_t));
    l->ring.dout = take(b, r * h, sizeof(uint16_t));
    l->ring.result = take(b, r * h, sizeof(uint16_t));
    l->ring.h = take(b, r * i, sizeof(uint16_t));
    l->ring.g = take(b, r * i, sizeof(uint16_t));
    l->ring.u = take(b, r * i, sizeof(uint16_t));
    l->ring.dg = take(b, r * i, sizeof(uint16_t));
    l->ring.du = take(b, r * i, sizeof(uint16_t));
    l->ring.weight = take(b, r, sizeof(float));
    l->ring.dweight = take(b, r * fy_tiles(i), sizeof(float));
}

static void tables(fy_layout *l, const fy_shape *s, int64_t workers) {
    int64_t *b = &l->table.bytes, t = s->max_tokens;
    int64_t macros = fy_divide_up(s->max_blocks, s->ring_rows / FY_BLOCK_ROWS);
    l->max_macrobatches = macros;
    int64_t steps = macros * fy_divide_up(s->ring_rows, s->minibatch_rows);
    /* A piece ends at the end of a step, of an expert or of the saved rows; a segment at a macrobatch's or expert's. */
    int64_t pieces = steps + s->local_experts + 1, segments = macros + s->local_experts;
    /* Most in a backward: three products of a piece, one of a segment, four of the shared expert. */
    int64_t groups = 3 * pieces + segments + 4;
    l->table.schedule = take(b, l->schedule.bytes, 1);
    l->table.steps = take(b, steps, sizeof(fy_step));
    l->table.pieces = take(b, pieces, sizeof(fy_piece));
    l->table.segments = take(b, segments, sizeof(fy_segment));
    l->table.groups = take(b, groups, sizeof(fy_group));
    l->table.open = take(b, macros > 1 ? 3 * s->hidden * s->intermediate : 0, sizeof(float));
    l->table.cursor = take(b, s->experts, sizeof(int64_t));
    l->table.lead = take(b, 2 * macros, sizeof(int64_t));
    l->scratch_stride = 0;
    take(&l->scratch_stride, 2 * FY_TILE_ROWS * FY_TILE_COLUMNS, sizeof(float));
    take(&l->scratch_stride, (int64_t)fy_product_scratch_bytes(), 1);
    take(&l->scratch_stride, s->hidden, sizeof(float)); /* so a row of sums fits, from the start on */
    l->table.scratch = take(b, workers, l->scratch_stride);
    if (s->shared == 0) return;
    l->shared.h = take(b, t * s->shared, sizeof(uint16_t));
    l->shared.g = take(b, t * s->shared, sizeof(uint16_t));
    l->shared.u = take(b, t * s->shared, sizeof(uint16_t));
    l->shared.dg = take(b, t * s->shared, sizeof(uint16_t));
    l->shared.du = take(b, t * s->shared, sizeof(uint16_t));
    l->shared.result = take(b, t * s->hidden, sizeof(uint16_t));
}

static void context(fy_layout *l, const fy_shape *s) {
    int64_t *b = &l->context.bytes, rows = s->context_rows;
    l->context.schedule = take(b, l->schedule.bytes, 1);
    l->context.own_x = take(b, s->max_tokens * s->hidden, sizeof(uint16_t));
    l->context.x = take(b, rows * s->hidden, sizeof(uint16_t));
    l->context.g = take(b, rows * s->intermediate, sizeof(uint16_t));
    l->context.u = take(b, rows * s->intermediate, sizeof(uint16_t));
    int64_t shared = s->context_rows > 0 ? s->max_tokens * s->shared : 0;
    l->context.shared_g = take(b, shared, sizeof(uint16_t));
    l->context.shared_u = take(b, shared, sizeof(uint16_t));
}

fy_layout fy_cpu_layout(const fy_shape *shape, int64_t workers) {
    fy_layout l = {.max_macrobatches = 0};
    l.schedule = schedule_layout(shape);
    symmetric(&l, shape);
    ring(&l, shape);
    tables(&l, shape, workers);
    context(&l, shape);
    return l;
}
