/* SPDX-License-Identifier: Apache-2.0 */
/* Planning: shapes, drawn routing, floors of known machines, and counts that equal what real calls count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cli/message.h"
#include "cli/plan_floor.h"
#include "cli/knobs.h"
#include "cli/routing.h"
#include "cli/shapes.h"
#include "rules/place.h"

/* ---- Shapes ---- */

static void test_shapes(void **state) {
    (void)state;
    layer_shape s;
    assert_int_equal(shape_parse("kimi-slice", 1, &s), CLI_OK);
    assert_int_equal(s.experts, 6);
    assert_int_equal(s.slots, 6);
    assert_int_equal(shape_parse("kimi-slice", 4, &s), CLI_OK);
    assert_int_equal(s.experts, 24);
    assert_int_equal(s.slots, 8);
    assert_int_equal(shape_parse("dsv3-full", 4, &s), CLI_OK);
    assert_int_equal(s.experts, 256);
    assert_int_equal(shape_parse("100,30,5,2,0", 3, &s), CLI_OK);
    assert_true(s.hidden == 100 && s.intermediate == 30 && s.experts == 5 && s.slots == 2 && s.tokens == 0);
    static const char *const bad[] = {"",        "kimi",      "1,2,3,4",    "1,2,3,4,5,6", "0,2,3,1,5",
                                      "1,2,3,4", "1,2,3,4,5", "1,2,3,1,5 ", "1,2,3,1,-1",  "1,2,3,1,99999999999",
                                      "a,2,3,1", "1,2,3,1,",  "1,2,3,1,0x5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(shape_parse(bad[i], 1, &s), CLI_USAGE);
}

static void test_scaling(void **state) {
    (void)state;
    layer_shape s = {7168, 2048, 6, 6, 2048}, same = shape_scaled(s, 1), third = shape_scaled(s, 3);
    assert_memory_equal(&s, &same, sizeof s);
    assert_true(third.hidden == 2368 && third.intermediate == 704 && third.tokens == 683 && third.experts == 6);
    third = shape_scaled(s, 10000);
    assert_true(third.hidden == 64 && third.intermediate == 64 && third.tokens == 1);
    assert_true(shape_flop(&s, 2) == 6.0 * 7168 * 2048 * 6 * 2048 * 2);
}

/* ---- Routing ---- */

/* Rows of the busiest of 8 equal parts of the experts, over the balanced share. */
static double unevenness(const routing *r, int64_t experts) {
    int64_t rows[8] = {0}, most = 0;
    for (int64_t i = 0; i < r->tokens * r->slots; i++) rows[r->ids[i] * 8 / experts]++;
    for (int i = 0; i < 8; i++) most = rows[i] > most ? rows[i] : most;
    return 8.0 * (double)most / (double)(r->tokens * r->slots);
}

static void test_drawn_routing(void **state) {
    (void)state;
    const int64_t tokens = 2000, experts = 64, slots = 8;
    routing r, first, skewed, other;
    assert_int_equal(routing_draw(&r, tokens, experts, slots, 0, 1), CLI_OK);
    for (int64_t t = 0; t < tokens; t++) {
        double sum = 0;
        for (int64_t k = 0; k < slots; k++) {
            const int32_t *ids = r.ids + t * slots;
            const float *weights = r.weights + t * slots;
            assert_true(ids[k] >= 0 && ids[k] < experts && weights[k] > 0);
            for (int64_t j = 0; j < k; j++) assert_true(ids[j] != ids[k] && weights[j] >= weights[k]);
            sum += (double)weights[k];
        }
        assert_true(fabs(sum - 1) < 1e-6);
    }
    /* A token's numbers are its own, whoever else is there. */
    assert_int_equal(routing_draw(&first, 100, experts, slots, 0, 1), CLI_OK);
    assert_memory_equal(first.ids, r.ids, 100 * (size_t)slots * sizeof *r.ids);
    assert_memory_equal(first.weights, r.weights, 100 * (size_t)slots * sizeof *r.weights);
    assert_int_equal(routing_draw(&other, 100, experts, slots, 0, 2), CLI_OK);
    assert_memory_not_equal(first.ids, other.ids, 100 * (size_t)slots * sizeof *r.ids);
    assert_int_equal(routing_draw(&skewed, tokens, experts, slots, 1, 1), CLI_OK);
    assert_true(unevenness(&r, experts) < 1.1);
    assert_true(unevenness(&skewed, experts) > 1.2);
    routing_free(&r);
    routing_free(&first);
    routing_free(&other);
    routing_free(&skewed);
}

/* The mean of the largest of n standard normal numbers, as the ratio of the two first weights sees it. */
static void test_drawn_logits_are_normal(void **state) {
    (void)state;
    routing r;
    assert_int_equal(routing_draw(&r, 20000, 2, 2, 0, 3), CLI_OK);
    double gap = 0;
    for (int64_t t = 0; t < r.tokens; t++) gap += log((double)r.weights[2 * t] / (double)r.weights[2 * t + 1]);
    gap /= (double)r.tokens;
    assert_true(fabs(gap - 2 / sqrt(3.14159265)) < 0.02); /* E|a - b| of two standard normals */
    routing_free(&r);
}

static void test_routing_file(void **state) {
    (void)state;
    char path[] = "/tmp/ferry-routing-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    routing r, back;
    assert_int_equal(routing_draw(&r, 17, 9, 3, 0.5, 1), CLI_OK);
    r.ids[5] = -1;
    assert_int_equal(routing_write(&r, path), CLI_OK);
    assert_int_equal(routing_read(&back, path, 9), CLI_OK);
    assert_true(back.tokens == 17 && back.slots == 3);
    assert_memory_equal(r.ids, back.ids, 17 * 3 * sizeof *r.ids);
    assert_memory_equal(r.weights, back.weights, 17 * 3 * sizeof *r.weights);
    routing_free(&back);
    layer_shape shape = {.experts = 9, .slots = 2};
    assert_int_equal(routing_read_for(&back, path, "nine", &shape), CLI_USAGE);
    assert_null(back.ids);
    shape.slots = 3;
    assert_int_equal(routing_read_for(&back, path, "nine", &shape), CLI_OK);
    assert_true(back.tokens == 17 && back.slots == 3);
    routing_free(&back);
    r.ids[7] = 9;
    assert_int_equal(routing_write(&r, path), CLI_OK);
    assert_int_equal(routing_read(&back, path, 9), CLI_FAILED);
    r.ids[7] = -2;
    assert_int_equal(routing_write(&r, path), CLI_OK);
    assert_int_equal(routing_read(&back, path, 9), CLI_FAILED);
    unlink(path);
    assert_int_equal(routing_read(&back, path, 9), CLI_FAILED);
    routing_free(&r);
}

/* ---- Floors ---- */

/* Milliseconds that a balanced routing takes on the named machine, from independent arithmetic; 0: not compared. */
typedef struct floor_case {
    const char *shape;
    int ranks;
    double flop, memory, link_each, link, flop_both, memory_both;
} floor_case;

static const floor_case floor_cases[] = {
    {"kimi-slice", 1, 1.38, .33, 0, 0, 4.15, 1.0},       {"kimi-slice", 2, 1.85, .40, .63, .40, 5.55, 1.2},
    {"glm5-slice", 1, .79, .20, 0, 0, 2.37, .6},         {"glm5-slice", 2, 1.58, .31, .54, .34, 4.75, 1.0},
    {"qwen397-slice", 2, .66, .24, .46, .27, 1.99, .7},  {"dsv4pro-slice", 2, 2.09, .41, .47, .32, 6.3, 1.3},
    {"qwen3-30b-a3b", 2, .79, .47, .73, .45, 2.37, 1.5}, {"olmoe", 2, 1.05, .44, .73, .45, 3.16, 1.4},
    {"mixtral-8x7b", 1, 7.38, 1.07, 0, 0, 22.1, 4.0},    {"mixtral-8x7b", 2, 7.44, .73, .36, .32, 22.3, 3.0}};

/* The given figures are rounded, and drawn ids differ a little in how busy the busiest rank is. */
static int is_near(double seconds, double ms) { return fabs(1e3 * seconds - ms) < 0.03 * ms + 0.006; }

static void check_floor(const floor_case *f) {
    machine m;
    layer_shape s;
    routing r;
    int64_t first_token[3];
    assert_int_equal(machine_find(FERRY_SOURCE_DIR "/data/machines/h200.json", f->ranks, &m), CLI_OK);
    assert_int_equal(shape_parse(f->shape, f->ranks, &s), CLI_OK);
    assert_int_equal(routing_draw(&r, s.tokens * f->ranks, s.experts, s.slots, 0, 1), CLI_OK);
    for (int i = 0; i <= f->ranks; i++) first_token[i] = i * s.tokens;
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = s.hidden;
    config.intermediate = s.intermediate;
    config.experts = s.experts;
    config.slots = s.slots;
    config.max_tokens = s.tokens;
    config.context_rows = -1;
    plan_input in = {&config, f->ranks, 1, 1, first_token, r.ids, FERRY_I32, 1, FERRY_CPU};
    plan_counts counts;
    assert_int_equal(plan_count(&in, &counts), FERRY_OK);
    plan_work forward = plan_work_of(&counts, &config, 0, 2), both = plan_work_of(&counts, &config, 1, 2);
    plan_floor a = plan_floor_of(&forward, &m), b = plan_floor_of(&both, &m);
    print_message("%s, %d ranks: %.3f %.3f %.3f %.3f; %.3f %.3f ms\n", f->shape, f->ranks, 1e3 * a.flop, 1e3 * a.memory,
                  1e3 * forward.link_each / m.link.per_s, 1e3 * a.link, 1e3 * b.flop, 1e3 * b.memory);
    assert_true(is_near(a.flop, f->flop) && is_near(a.memory, f->memory) && is_near(a.link, f->link));
    assert_true(is_near(forward.link_each / m.link.per_s, f->link_each));
    assert_true(is_near(b.flop, f->flop_both));
    assert_true(fabs(1e3 * b.memory - f->memory_both) < 0.06 + 0.01 * f->memory_both);
    assert_true(a.floor == fmax(a.flop, fmax(a.link, a.memory)));
    plan_counts_free(&counts);
    routing_free(&r);
}

static void test_floors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof floor_cases / sizeof *floor_cases; i++) check_floor(&floor_cases[i]);
}

static void test_machines(void **state) {
    (void)state;
    machine m;
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = 7168;
    config.intermediate = 2048;
    assert_int_equal(machine_find(FERRY_SOURCE_DIR "/data/machines/gb300.json", 1, &m), CLI_OK);
    assert_int_equal(plan_two_waves(&config, &m), 2368);
    assert_true(!m.product.measured && m.product.per_s > 1e15);
    assert_int_equal(machine_find(FERRY_SOURCE_DIR "/data/machines/h100.json", 1, &m), CLI_OK);
    assert_int_equal(machine_find(FERRY_SOURCE_DIR "/data/machines/none.json", 1, &m), CLI_USAGE);
    assert_int_equal(machine_find(FERRY_SOURCE_DIR "/README.md", 1, &m), CLI_FAILED);
}

/* ---- Counts against calls ---- */

static uint64_t random_state;

static int64_t below(int64_t n) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ z >> 31) % (uint64_t)n);
}

static int64_t one_of(const int64_t *values, int64_t count) { return values[below(count)]; }
#define ONE_OF(...) one_of((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

enum { MOST_RANKS = 4, MOST_TOKENS = 90, MOST_SLOTS = 5, MOST_WIDTH = 300 };

/* A layer, its ids, and what its ranks counted. */
typedef struct call_case {
    ferry_layer_config config;
    int nranks, comm_workers, compute_workers;
    int64_t first_token[MOST_RANKS + 1];
    int32_t ids[MOST_RANKS * MOST_TOKENS * MOST_SLOTS];
    int32_t expert_rank[64];
    ferry_stats forward[MOST_RANKS], backward[MOST_RANKS];
    ferry_plan plan[MOST_RANKS];
} call_case;

static void draw_case(call_case *c) {
    ferry_layer_config *g = &c->config;
    *c = (call_case){.nranks = 1 + (int)below(MOST_RANKS), .comm_workers = 1 + (int)below(2)};
    c->compute_workers = 1 + (int)below(2);
    ferry_layer_config_init(g);
    g->hidden = ONE_OF(1, 7, 64, 100, 257);
    g->intermediate = ONE_OF(1, 5, 64, 96, 260);
    g->shared = ONE_OF(0, 0, 3, 64);
    g->experts = 1 + below(20);
    g->slots = 1 + below(MOST_SLOTS);
    g->ring_rows = ONE_OF(0, 1, 64, 128, 192, 100000);
    g->minibatch_rows = ONE_OF(0, 64, 128);
    g->context_rows = ONE_OF(-1, 0, 0, 1, 64, 128, 320, 100000);
    int64_t most = ONE_OF(0, 3, 40, MOST_TOKENS);
    for (int r = 0; r < c->nranks; r++) {
        int64_t n = below(most + 1);
        c->first_token[r + 1] = c->first_token[r] + n;
        if (n > g->max_tokens) g->max_tokens = n;
    }
    if (below(3) == 0) {
        for (int64_t e = 0; e < g->experts; e++) c->expert_rank[e] = (int32_t)below(c->nranks);
        g->expert_rank = c->expert_rank;
    }
    /* Some experts get most slots; some slots have none, or an id that counts as none. */
    int64_t favoured = 1 + below(g->experts), wrong = below(4) == 0 ? 3 : 0;
    for (int64_t i = 0; i < c->first_token[c->nranks] * g->slots; i++)
        c->ids[i] = (int32_t)(below(2) ? below(favoured) : below(g->experts + 2 + wrong) - 1 - (wrong > 0));
}

/* Tensors whose values do not matter: counts do not depend on them. All zeros, shared by all experts and ranks. */
static uint16_t zeros[MOST_TOKENS * MOST_WIDTH + MOST_WIDTH * MOST_WIDTH];
static float router_weights[MOST_TOKENS * MOST_SLOTS];

typedef struct sinks {
    uint16_t out[MOST_TOKENS * MOST_WIDTH];
    float dweights[MOST_TOKENS * MOST_SLOTS];
    float grads[3][20 * MOST_WIDTH * MOST_WIDTH], shared[3][MOST_WIDTH * MOST_WIDTH];
} sinks;

static ferry_matrices weight_of(int64_t columns) {
    return (ferry_matrices){.base = zeros, .expert_stride = 0, .row_stride = columns, .dtype = FERRY_BF16};
}

static ferry_gradient gradient_to(float *base, int64_t rows, int64_t columns) {
    return (ferry_gradient){
        .to = {.base = base, .expert_stride = rows * columns, .row_stride = columns, .dtype = FERRY_F32}};
}

static ferry_status forward(const call_case *c, ferry_layer *layer, ferry_context *context, int rank, sinks *s,
                            ferry_weights *params, ferry_stats *stats) {
    int32_t tokens = (int32_t)(c->first_token[rank + 1] - c->first_token[rank]);
    ferry_forward_args f;
    ferry_forward_args_init(&f);
    f.num_tokens = &tokens;
    f.x = zeros;
    f.ids = c->ids + c->first_token[rank] * c->config.slots;
    f.ids_dtype = FERRY_I32;
    f.weights = router_weights;
    params->gate = params->up = weight_of(c->config.hidden);
    params->down = weight_of(c->config.intermediate);
    if (c->config.shared > 0) {
        params->shared_gate = params->shared_up = weight_of(c->config.hidden);
        params->shared_down = weight_of(c->config.shared);
    }
    f.params = *params;
    f.out = s->out;
    f.context = context;
    ferry_status status = ferry_forward(layer, &f);
    if (status != FERRY_OK && status != FERRY_E_BAD_ID) return status;
    stats->size = sizeof *stats;
    return ferry_layer_stats(layer, stats);
}

static ferry_status backward(const call_case *c, ferry_layer *layer, ferry_context *context, sinks *s,
                             const ferry_weights *params, ferry_stats *stats) {
    int64_t h = c->config.hidden, i = c->config.intermediate, w = c->config.shared;
    ferry_backward_args b;
    ferry_backward_args_init(&b);
    b.context = context;
    b.parts = FERRY_BACKWARD_ALL;
    b.dout = zeros;
    b.params = *params;
    b.dx = s->out;
    b.dweights = s->dweights;
    b.grads.gate = gradient_to(s->grads[0], i, h);
    b.grads.up = gradient_to(s->grads[1], i, h);
    b.grads.down = gradient_to(s->grads[2], h, i);
    if (w > 0) {
        b.grads.shared_gate = gradient_to(s->shared[0], w, h);
        b.grads.shared_up = gradient_to(s->shared[1], w, h);
        b.grads.shared_down = gradient_to(s->shared[2], h, w);
    }
    ferry_status status = ferry_backward(layer, &b);
    if (status != FERRY_OK) return status;
    stats->size = sizeof *stats;
    return ferry_layer_stats(layer, stats);
}

static int call_rank(void *user, const ferry_bootstrap *bootstrap, int rank) {
    call_case *c = user;
    ferry_comm_config config;
    ferry_comm *comm = NULL;
    ferry_layer *layer = NULL;
    ferry_context *context = NULL;
    ferry_weights params = {.gate = {.base = NULL}};
    sinks *s = calloc(1, sizeof *s);
    ferry_comm_config_init(&config);
    config.bootstrap = *bootstrap;
    config.comm_workers = c->comm_workers;
    config.compute_workers = c->compute_workers;
    ferry_status status = ferry_comm_create(&config, &comm);
    if (!status) status = ferry_layer_create(comm, &c->config, &layer);
    c->plan[rank].size = sizeof c->plan[rank];
    if (!status) status = ferry_layer_get_plan(layer, &c->plan[rank]);
    if (!status) status = ferry_context_create(layer, NULL, &context);
    if (!status) status = forward(c, layer, context, rank, s, &params, &c->forward[rank]);
    if (!status) status = backward(c, layer, context, s, &params, &c->backward[rank]);
    if (status) cli_fail_status(status, "running a case");
    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    free(s);
    return status != FERRY_OK;
}

static int64_t differ(const char *name, int index, int rank, int64_t counted, int64_t planned) {
    if (counted == planned) return 0;
    print_error("case %d, rank %d, %s: counted %" PRId64 ", planned %" PRId64 "\n", index, rank, name, counted,
                planned);
    return 1;
}

static int64_t compare_stats(int index, int rank, const ferry_stats *counted, const ferry_stats *planned) {
    int64_t bad = 0;
#define SAME(field) bad += differ(#field, index, rank, counted->field, planned->field)
    SAME(rows);
    SAME(macrobatches);
    SAME(steps);
    SAME(ring_high_water);
    SAME(pulls);
    SAME(recomputed_rows);
    SAME(bytes_schedule);
    SAME(bytes_pull);
    SAME(bytes_pull_remote);
    SAME(bytes_push);
    SAME(bytes_push_remote);
    SAME(bytes_sum);
    SAME(flop);
#undef SAME
    return bad;
}

/* The links' bytes are those that the ranks pulled from others and pushed to others. */
static int64_t compare_links(int index, const call_case *c, const plan_counts *p) {
    int64_t counted[2] = {0, 0}, planned[2] = {0, 0}, in = 0, out = 0;
    for (int r = 0; r < c->nranks; r++) {
        counted[0] += c->forward[r].bytes_pull_remote + c->forward[r].bytes_push_remote;
        counted[1] += c->backward[r].bytes_pull_remote + c->backward[r].bytes_push_remote;
        in += p->rank[r].forward_in.fanned + p->rank[r].backward_in.fanned;
        out += p->rank[r].forward_out.fanned + p->rank[r].backward_out.fanned;
        for (int to = 0; to < c->nranks; to++) {
            for (int backward = 0; to != r && backward < 2; backward++) {
                plan_bytes link = plan_link(p, r, to, backward);
                planned[backward] += link.fanned;
                if (link.each < link.fanned) return differ("fan-out", index, r, link.fanned, link.each);
            }
        }
    }
    return differ("forward links", index, -1, counted[0], planned[0]) +
           differ("backward links", index, -1, counted[1], planned[1]) +
           differ("bytes in", index, -1, counted[0] + counted[1], in) +
           differ("bytes out", index, -1, counted[0] + counted[1], out);
}

/* What the communicator itself holds depends on ranks and workers alone. */
static int64_t compare_bytes(int index, const call_case *c, const plan_counts *p, int64_t *comm_bytes) {
    int64_t bad = 0;
    for (int r = 0; r < c->nranks; r++) {
        int64_t *known = &comm_bytes[(c->nranks * 3 + c->comm_workers) * 3 + c->compute_workers];
        int64_t rest = c->backward[r].peak_bytes - p->rank[r].plan.layer_bytes - p->rank[r].plan.context_bytes;
        if (*known == 0) *known = rest;
        bad += differ("bytes beside the plan", index, r, rest, *known);
        bad += memcmp(&c->plan[r], &p->rank[r].plan, sizeof c->plan[r]) != 0;
    }
    return bad;
}

static void test_counts_equal_calls(void **state) {
    (void)state;
    static call_case c;
    static int64_t comm_bytes[64];
    int64_t bad = 0, recomputed = 0, fanned = 0, many = 0;
    random_state = 20250;
    print_message("seed %" PRIu64 "\n", random_state);
    for (int index = 0; index < 50; index++) {
        draw_case(&c);
        cli_launch_options launch = {.nranks = c.nranks};
        plan_input in = {&c.config, c.nranks, c.comm_workers, c.compute_workers, c.first_token, c.ids,
                         FERRY_I32, 1,        FERRY_CPU};
        plan_counts p;
        assert_int_equal(plan_count(&in, &p), FERRY_OK);
        assert_int_equal(cli_launch(&launch, call_rank, &c), 0);
        for (int r = 0; r < c.nranks; r++) {
            bad += compare_stats(index, r, &c.forward[r], &p.rank[r].forward);
            bad += compare_stats(index, r, &c.backward[r], &p.rank[r].backward);
            recomputed += c.backward[r].recomputed_rows;
            fanned += c.forward[r].rows - c.forward[r].pulls;
            many += c.forward[r].macrobatches > 2;
        }
        bad += compare_links(index, &c, &p) + compare_bytes(index, &c, &p, comm_bytes);
        plan_counts_free(&p);
    }
    assert_int_equal(bad, 0);
    /* The cases are worth it. */
    assert_true(recomputed > 100 && fanned > 100 && many > 10);
}

static void test_bad_config(void **state) {
    (void)state;
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    int64_t first_token[2] = {0, 0};
    plan_input in = {&config, 1, 1, 1, first_token, NULL, FERRY_I32, 1, FERRY_CPU};
    plan_counts counts;
    assert_int_equal(plan_count(&in, &counts), FERRY_E_INVALID); /* hidden is 0 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_scaling),
        cmocka_unit_test(test_drawn_routing), cmocka_unit_test(test_drawn_logits_are_normal),
        cmocka_unit_test(test_routing_file),  cmocka_unit_test(test_floors),
        cmocka_unit_test(test_machines),      cmocka_unit_test(test_counts_equal_calls),
        cmocka_unit_test(test_bad_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
