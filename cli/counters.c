/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One list of fields for ferry_stats and one for ferry_plan: a number has the same name in all reports that print it
 * (`ferry bench`, `plan` and `run`).
 */
#include "cli/counters.h"

/* Where a counter goes in the object, its name there, and its field. */
#define COUNTER_MAP(X)                                                                                                 \
    X(object, "macrobatches", macrobatches)                                                                            \
    X(object, "ring_high_water", ring_high_water)                                                                      \
    X(object, "pulls", pulls)                                                                                          \
    X(object, "recomputed_rows", recomputed_rows)                                                                      \
    X(object, "rows", rows)                                                                                            \
    X(object, "steps", steps)                                                                                          \
    X(object, "flop", flop)                                                                                            \
    X(bytes, "schedule", bytes_schedule)                                                                               \
    X(bytes, "pull", bytes_pull)                                                                                       \
    X(bytes, "pull_remote", bytes_pull_remote)                                                                         \
    X(bytes, "push", bytes_push)                                                                                       \
    X(bytes, "push_remote", bytes_push_remote)                                                                         \
    X(bytes, "sum", bytes_sum)

#define PLANNED_MAP(X)                                                                                                 \
    X(local_experts)                                                                                                   \
    X(minibatch_rows)                                                                                                  \
    X(ring_rows)                                                                                                       \
    X(context_rows)                                                                                                    \
    X(max_rows)                                                                                                        \
    X(symmetric_bytes)                                                                                                 \
    X(ring_bytes)                                                                                                      \
    X(table_bytes)                                                                                                     \
    X(layer_bytes)                                                                                                     \
    X(context_bytes)                                                                                                   \
    X(tuned)

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

void counters_add(ferry_stats *total, const ferry_stats *one) {
    ferry_stats before = *total;
#define COUNTER_ADD(where, name, field) total->field += one->field;
    COUNTER_MAP(COUNTER_ADD)
#undef COUNTER_ADD
    total->macrobatches = larger(before.macrobatches, one->macrobatches);
    total->ring_high_water = larger(before.ring_high_water, one->ring_high_water);
}

json_t *counters_json(const ferry_stats *stats) {
    json_t *object = json_object(), *bytes = json_object();
#define COUNTER_SET(where, name, field) json_object_set_new(where, name, json_integer(stats->field));
    COUNTER_MAP(COUNTER_SET)
#undef COUNTER_SET
    json_object_set_new(object, "bytes", bytes);
    return object;
}

json_t *planned_json(const ferry_plan *plan) {
    json_t *object = json_object();
#define PLANNED_SET(field) json_object_set_new(object, #field, json_integer(plan->field));
    PLANNED_MAP(PLANNED_SET)
#undef PLANNED_SET
    return object;
}
