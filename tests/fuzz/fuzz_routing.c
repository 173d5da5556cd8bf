/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing and knobs. An input is a tiny layer, how its tokens and experts lie on ranks, and the ids and router weights
 * of every slot. It is run forward and backward on up to three ranks with whatever ring, minibatch and context the
 * input says, and once plainly on one rank: the bits must be equal. Where all weights are finite the results must
 * also be near the oracle's.
 */
#include "tests/fuzz/input.h"

#include "ferry/ferry.h"
#include "ref/ref.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { MOST_RANKS = 3, MOST_TOKENS = 48, MOST_EXPERTS = 7 };

typedef struct problem {
    int64_t hidden, intermediate, shared, experts, slots, tokens;
    float limit;
    uint64_t seed;
    uint16_t *x, *dout, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    int64_t *ids;
    float *weights;
    int64_t bad_ids;
    int finite; /* the weights of all slots with an expert are */
    float largest;
} problem;

/* How it is run. */
typedef struct way {
    int ranks;
    int64_t tokens[MOST_RANKS], spare; /* max_tokens is `spare` more than any rank passes */
    int64_t ring, minibatch, context;
    int32_t expert_rank[MOST_EXPERTS];
    int mapped, wide_ids, comm_workers, compute_workers, parts_first, bf16, too_many;
} way;

/* Of the whole batch; gradients of the shared expert are not here, since they are sums over one rank's tokens. */
typedef struct result {
    uint16_t *out, *dx;
    float *dweights;
    void *grads[3]; /* gate, up, down */
} result;

static void *take(size_t count, size_t bytes) {
    void *memory = malloc(count * bytes);
    if (!memory) exit(2);
    memset(memory, 0xff, count * bytes);
    return memory;
}

/* ---- Values ---- */

static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static float widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Multiples of 1/64 in [-2, 2): exact in BF16. */
static uint16_t *draw_values(uint64_t *state, int64_t count) {
    uint16_t *values = take((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        float f = (float)(int8_t)mix(state) / 64;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
    return values;
}

static int64_t draw_id(fuzz_input *in, int64_t experts) {
    static const int64_t garbage[] = {-2, INT32_MAX, INT32_MIN, 1000000};
    uint8_t byte = fuzz_byte(in);
    if (byte >= 248) return byte & 1 ? experts : garbage[byte / 2 % 4];
    return byte % (experts + 1) == experts ? -1 : byte % (experts + 1);
}

static float draw_weight(fuzz_input *in) {
    uint8_t byte = fuzz_byte(in);
    if (byte == 255) return NAN;
    if (byte == 254) return INFINITY;
    if (byte == 253) return -0.0f;
    return ((float)byte - 100) / 64;
}

static problem draw_problem(fuzz_input *in, const way *w) {
    problem p = {.finite = 1};
    p.hidden = fuzz_choice(in, 1, 9);
    p.intermediate = fuzz_choice(in, 1, 9);
    p.shared = fuzz_choice(in, 0, 5);
    p.experts = fuzz_choice(in, 1, MOST_EXPERTS);
    p.slots = fuzz_choice(in, 1, 5);
    p.limit = (float)fuzz_choice(in, 0, 3) / 2;
    p.seed = fuzz_byte(in);
    for (int r = 0; r < w->ranks; r++) p.tokens += w->tokens[r];
    uint64_t state = p.seed;
    int64_t matrix = p.intermediate * p.hidden, slots = p.tokens * p.slots;
    p.x = draw_values(&state, p.tokens * p.hidden);
    p.dout = draw_values(&state, p.tokens * p.hidden);
    p.gate = draw_values(&state, p.experts * matrix);
    p.up = draw_values(&state, p.experts * matrix);
    p.down = draw_values(&state, p.experts * matrix);
    p.shared_gate = draw_values(&state, p.shared * p.hidden);
    p.shared_up = draw_values(&state, p.shared * p.hidden);
    p.shared_down = draw_values(&state, p.shared * p.hidden);
    p.ids = take((size_t)slots, sizeof *p.ids);
    p.weights = take((size_t)slots, sizeof *p.weights);
    for (int64_t i = 0; i < slots; i++) {
        p.ids[i] = draw_id(in, p.experts);
        p.weights[i] = draw_weight(in);
        p.bad_ids += p.ids[i] < -1 || p.ids[i] >= p.experts;
        if (p.ids[i] < 0 || p.ids[i] >= p.experts)
            p.weights[i] = NAN; /* nobody may read it */
        else if (!isfinite(p.weights[i]))
            p.finite = 0;
        else if (fabsf(p.weights[i]) > p.largest)
            p.largest = fabsf(p.weights[i]);
    }
    return p;
}

static way draw_way(fuzz_input *in) {
    way w = {.ranks = (int)fuzz_choice(in, 1, MOST_RANKS)};
    for (int r = 0; r < MOST_RANKS; r++) w.tokens[r] = fuzz_choice(in, 0, r < w.ranks ? MOST_TOKENS : 0);
    w.spare = fuzz_choice(in, 0, 2);
    w.ring = 64 * fuzz_choice(in, 0, 4);
    w.minibatch = 64 * fuzz_choice(in, 0, 2);
    w.context = fuzz_choice(in, -1, 3) * 64;
    if (w.context < 0) w.context = -1;
    w.mapped = (int)fuzz_choice(in, 0, 1);
    for (int e = 0; e < MOST_EXPERTS && w.mapped; e++) w.expert_rank[e] = (int32_t)fuzz_choice(in, 0, w.ranks - 1);
    w.wide_ids = (int)fuzz_choice(in, 0, 1);
    w.comm_workers = (int)fuzz_choice(in, 1, 2);
    w.compute_workers = (int)fuzz_choice(in, 1, 2);
    w.parts_first = (int)fuzz_choice(in, 0, 2);
    w.bf16 = (int)fuzz_choice(in, 0, 1);
    w.too_many = (int)fuzz_choice(in, 0, 7) == 7;
    return w;
}

static void free_problem(problem *p) {
    void *all[] = {p->x,           p->dout,      p->gate,        p->up,  p->down,
                   p->shared_gate, p->shared_up, p->shared_down, p->ids, p->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static size_t gradient_bytes(const problem *p, const way *w) {
    return (size_t)(p->intermediate * p->hidden) * (w->bf16 ? 2 : 4);
}

static result make_result(const problem *p, const way *w) {
    result r = {.out = take((size_t)(p->tokens * p->hidden), 2),
                .dx = take((size_t)(p->tokens * p->hidden), 2),
                .dweights = take((size_t)(p->tokens * p->slots), 4)};
    for (int i = 0; i < 3; i++) r.grads[i] = take((size_t)p->experts, gradient_bytes(p, w));
    return r;
}

static void free_result(result *r) {
    free(r->out);
    free(r->dx);
    free(r->dweights);
    for (int i = 0; i < 3; i++) free(r->grads[i]);
}

/* ---- One rank ---- */

typedef struct rank_job {
    const problem *p;
    const way *w;
    result *to;
    ferry_thread_group *group;
    int rank;
} rank_job;

/* Memory of exactly a rank's size, so that reading or writing beside it is found. */
typedef struct rank_tensors {
    int64_t first;
    int32_t tokens;
    uint16_t *x, *dout, *out, *dx;
    float *weights, *dweights;
    void *ids, *shared_grads[3];
    void *weight_table[3][MOST_EXPERTS], *grad_table[3][MOST_EXPERTS];
} rank_tensors;

static void *copy(const void *from, size_t bytes) {
    void *to = take(bytes, 1);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static rank_tensors make_tensors(const rank_job *job) {
    const problem *p = job->p;
    rank_tensors t = {.tokens = (int32_t)job->w->tokens[job->rank]};
    for (int r = 0; r < job->rank; r++) t.first += job->w->tokens[r];
    size_t values = (size_t)(t.tokens * p->hidden), slots = (size_t)(t.tokens * p->slots);
    t.x = copy(p->x + t.first * p->hidden, 2 * values);
    t.dout = copy(p->dout + t.first * p->hidden, 2 * values);
    t.weights = copy(p->weights + t.first * p->slots, 4 * slots);
    t.ids = take(slots, job->w->wide_ids ? 8 : 4);
    for (size_t i = 0; i < slots; i++) {
        int64_t id = p->ids[t.first * p->slots + (int64_t)i];
        if (job->w->wide_ids)
            ((int64_t *)t.ids)[i] = id;
        else
            ((int32_t *)t.ids)[i] = (int32_t)id;
    }
    t.out = take(values, 2);
    t.dx = take(values, 2);
    t.dweights = take(slots, 4);
    for (int i = 0; i < 3; i++) t.shared_grads[i] = take((size_t)(p->shared * p->hidden), 4);
    return t;
}

static void free_tensors(rank_tensors *t) {
    void *all[] = {t->x,
                   t->dout,
                   t->weights,
                   t->ids,
                   t->out,
                   t->dx,
                   t->dweights,
                   t->shared_grads[0],
                   t->shared_grads[1],
                   t->shared_grads[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static ferry_matrices one_matrix(void *base, int64_t columns, ferry_dtype dtype) {
    return (ferry_matrices){.base = base, .row_stride = columns, .dtype = dtype};
}

/* Pointers per expert straight into the problem and the result. */
static void point_experts(const rank_job *job, ferry_layer *layer, rank_tensors *t, ferry_forward_args *forward,
                          ferry_backward_args *backward) {
    const problem *p = job->p;
    uint16_t *const from[3] = {p->gate, p->up, p->down};
    ferry_matrices *weights[3] = {&forward->params.gate, &forward->params.up, &forward->params.down};
    ferry_gradient *grads[3] = {&backward->grads.gate, &backward->grads.up, &backward->grads.down};
    int64_t local = ferry_layer_local_experts(layer, job->rank);
    for (int i = 0; i < 3; i++) {
        int64_t columns = i == 2 ? p->intermediate : p->hidden;
        for (int64_t e = 0; e < local; e++) {
            int64_t id = ferry_layer_expert_id(layer, job->rank, e);
            t->weight_table[i][e] = from[i] + id * p->intermediate * p->hidden;
            t->grad_table[i][e] = (char *)job->to->grads[i] + (size_t)id * gradient_bytes(p, job->w);
        }
        *weights[i] = (ferry_matrices){.table = t->weight_table[i], .row_stride = columns, .dtype = FERRY_BF16};
        *grads[i] = (ferry_gradient){
            .to = {.table = t->grad_table[i], .row_stride = columns, .dtype = job->w->bf16 ? FERRY_BF16 : FERRY_F32}};
    }
    forward->params.shared_gate = one_matrix(p->shared_gate, p->hidden, FERRY_BF16);
    forward->params.shared_up = one_matrix(p->shared_up, p->hidden, FERRY_BF16);
    forward->params.shared_down = one_matrix(p->shared_down, p->shared, FERRY_BF16);
    backward->grads.shared_gate.to = one_matrix(t->shared_grads[0], p->hidden, FERRY_F32);
    backward->grads.shared_up.to = one_matrix(t->shared_grads[1], p->hidden, FERRY_F32);
    backward->grads.shared_down.to = one_matrix(t->shared_grads[2], p->shared, FERRY_F32);
    backward->params = forward->params;
}

static void expect(const rank_job *job, const char *what, ferry_status status, ferry_status expected) {
    FUZZ_CHECK(status == expected, "rank %d, %s: %s instead of %s: %s", job->rank, what, ferry_status_name(status),
               ferry_status_name(expected), ferry_last_error());
}

/* A call that passes too many tokens on rank 0 does nothing on any rank. */
static void pass_too_many(const rank_job *job, ferry_layer *layer, ferry_forward_args *args, int64_t max_tokens) {
    int32_t number = job->rank == 0 ? (int32_t)max_tokens + 1 : *args->num_tokens;
    const int32_t *real = args->num_tokens;
    args->num_tokens = &number;
    expect(job, "too many tokens", ferry_forward(layer, args), FERRY_E_TOO_MANY_TOKENS);
    args->num_tokens = real;
    int64_t bytes = 2 * *real * job->p->hidden;
    for (int64_t i = 0; i < bytes; i++) FUZZ_CHECK(((uint8_t *)args->out)[i] == 0xff, "out was written");
}

static void run_calls(const rank_job *job, ferry_layer *layer, ferry_context *context, int64_t max_tokens) {
    const problem *p = job->p;
    rank_tensors t = make_tensors(job);
    ferry_forward_args forward;
    ferry_backward_args backward;
    ferry_forward_args_init(&forward);
    ferry_backward_args_init(&backward);
    point_experts(job, layer, &t, &forward, &backward);
    forward.num_tokens = &t.tokens;
    forward.x = t.x;
    forward.ids = t.ids;
    forward.ids_dtype = job->w->wide_ids ? FERRY_I64 : FERRY_I32;
    forward.weights = t.weights;
    forward.out = t.out;
    forward.context = context;
    backward.context = context;
    backward.dout = t.dout;
    backward.dx = t.dx;
    backward.dweights = t.dweights;
    if (job->w->too_many) pass_too_many(job, layer, &forward, max_tokens);
    expect(job, "forward", ferry_forward(layer, &forward), p->bad_ids ? FERRY_E_BAD_ID : FERRY_OK);
    int first = job->w->parts_first ? job->w->parts_first : FERRY_BACKWARD_ALL;
    for (int left = FERRY_BACKWARD_ALL; left; left &= ~first, first = left) {
        backward.parts = first;
        expect(job, "backward", ferry_backward(layer, &backward), FERRY_OK);
    }
    size_t values = (size_t)(t.tokens * p->hidden), slots = (size_t)(t.tokens * p->slots);
    memcpy(job->to->out + t.first * p->hidden, t.out, 2 * values);
    memcpy(job->to->dx + t.first * p->hidden, t.dx, 2 * values);
    memcpy(job->to->dweights + t.first * p->slots, t.dweights, 4 * slots);
    free_tensors(&t);
}

static void *rank_main(void *argument) {
    const rank_job *job = argument;
    const problem *p = job->p;
    ferry_comm_config config;
    ferry_layer_config sizes;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context;
    ferry_comm_config_init(&config);
    ferry_layer_config_init(&sizes);
    expect(job, "bootstrap", ferry_thread_group_bootstrap(job->group, job->rank, &config.bootstrap), FERRY_OK);
    config.comm_workers = job->w->comm_workers;
    config.compute_workers = job->w->compute_workers;
    sizes.hidden = p->hidden;
    sizes.intermediate = p->intermediate;
    sizes.shared = p->shared;
    sizes.experts = p->experts;
    sizes.slots = p->slots;
    sizes.swiglu_limit = p->limit;
    for (int r = 0; r < job->w->ranks; r++)
        if (job->w->tokens[r] > sizes.max_tokens) sizes.max_tokens = job->w->tokens[r];
    sizes.max_tokens += job->w->spare;
    sizes.expert_rank = job->w->mapped ? job->w->expert_rank : NULL;
    sizes.ring_rows = job->w->ring;
    sizes.minibatch_rows = job->w->minibatch;
    sizes.context_rows = job->w->context;
    expect(job, "communicator", ferry_comm_create(&config, &comm), FERRY_OK);
    expect(job, "layer", ferry_layer_create(comm, &sizes, &layer), FERRY_OK);
    expect(job, "context", ferry_context_create(layer, NULL, &context), FERRY_OK);
    run_calls(job, layer, context, sizes.max_tokens);
    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    return NULL;
}

static result run(const problem *p, const way *w) {
    result to = make_result(p, w);
    pthread_t threads[MOST_RANKS];
    rank_job jobs[MOST_RANKS];
    ferry_thread_group *group;
    FUZZ_CHECK(ferry_thread_group_create(w->ranks, &group) == FERRY_OK, "%s", ferry_last_error());
    for (int r = 0; r < w->ranks; r++) {
        jobs[r] = (rank_job){p, w, &to, group, r};
        if (pthread_create(&threads[r], NULL, rank_main, &jobs[r]) != 0) exit(2);
    }
    for (int r = 0; r < w->ranks; r++) pthread_join(threads[r], NULL);
    ferry_thread_group_destroy(group);
    return to;
}

/* ---- Judging ---- */

static void same_bits(const char *what, const void *a, const void *b, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        FUZZ_CHECK(((const uint8_t *)a)[i] == ((const uint8_t *)b)[i], "%s differs at byte %zu", what, i);
}

static void compare_bits(const problem *p, const way *w, const result *a, const result *b) {
    static const char *const names[] = {"dgate", "dup", "ddown"};
    same_bits("out", a->out, b->out, (size_t)(p->tokens * p->hidden) * 2);
    same_bits("dx", a->dx, b->dx, (size_t)(p->tokens * p->hidden) * 2);
    same_bits("dweights", a->dweights, b->dweights, (size_t)(p->tokens * p->slots) * 4);
    for (int i = 0; i < 3; i++)
        same_bits(names[i], a->grads[i], b->grads[i], (size_t)p->experts * gradient_bytes(p, w));
}

static double *doubles(const uint16_t *from, int64_t count) {
    double *to = take((size_t)count, sizeof *to);
    for (int64_t i = 0; i < count; i++) to[i] = (double)widen(from[i]);
    return to;
}

/* Within 2 % of the largest value, or of what one slot adds: sums of slots may cancel. */
static void near(const char *what, const void *got, int narrow, const double *want, int64_t count, double floor) {
    double largest = floor;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < count; i++) {
        double value = narrow ? (double)widen(((const uint16_t *)got)[i]) : (double)((const float *)got)[i];
        FUZZ_CHECK(fabs(value - want[i]) <= 0.02 * largest, "%s[%lld] is %g, the oracle says %g", what, (long long)i,
                   value, want[i]);
    }
}

static void compare_oracle(const problem *p, const way *w, const result *got) {
    int64_t values = p->tokens * p->hidden, slots = p->tokens * p->slots, matrix = p->intermediate * p->hidden;
    double *x = doubles(p->x, values), *dout = doubles(p->dout, values), *gate = doubles(p->gate, p->experts * matrix);
    double *up = doubles(p->up, p->experts * matrix), *down = doubles(p->down, p->experts * matrix);
    double *shared[3] = {doubles(p->shared_gate, p->shared * p->hidden), doubles(p->shared_up, p->shared * p->hidden),
                         doubles(p->shared_down, p->shared * p->hidden)};
    double *weights = take((size_t)slots, sizeof *weights);
    for (int64_t i = 0; i < slots; i++) weights[i] = (double)p->weights[i];
    fy_ref_problem problem = {.tokens = p->tokens,
                              .hidden = p->hidden,
                              .intermediate = p->intermediate,
                              .shared = p->shared,
                              .experts = p->experts,
                              .slots = p->slots,
                              .limit = (double)p->limit,
                              .mode = FY_REF_POINTS,
                              .x = x,
                              .ids = p->ids,
                              .weights = weights,
                              .gate = gate,
                              .up = up,
                              .down = down,
                              .shared_gate = shared[0],
                              .shared_up = shared[1],
                              .shared_down = shared[2],
                              .dout = dout};
    fy_ref_result to = {.out = take((size_t)values, 8),
                        .dx = take((size_t)values, 8),
                        .dweights = take((size_t)slots, 8),
                        .dgate = take((size_t)(p->experts * matrix), 8),
                        .dup = take((size_t)(p->experts * matrix), 8),
                        .ddown = take((size_t)(p->experts * matrix), 8)};
    if (fy_ref_layer(&problem, &to) != 0) exit(2);
    near("out", got->out, 1, to.out, values, 4.0 + 8.0 * (double)p->largest);
    if (p->limit == 0) { /* a value on the other side of a clamp than the oracle's has another gradient */
        const double *want[3] = {to.dgate, to.dup, to.ddown};
        near("dx", got->dx, 1, to.dx, values, 4.0 + 8.0 * (double)p->largest);
        near("dweights", got->dweights, 0, to.dweights, slots, 8.0);
        for (int i = 0; i < 3; i++)
            near("a gradient", got->grads[i], w->bf16, want[i], p->experts * matrix, 8.0 * (double)p->largest);
    }
    void *all[] = {x,       dout,   gate,  up,          down,     shared[0], shared[1], shared[2],
                   weights, to.out, to.dx, to.dweights, to.dgate, to.dup,    to.ddown};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = fuzz_input_of(data, size);
    way drawn = draw_way(&in);
    problem p = draw_problem(&in, &drawn);
    way plain = {.ranks = 1,
                 .tokens = {p.tokens},
                 .context = -1,
                 .comm_workers = 1,
                 .compute_workers = 1,
                 .wide_ids = 1,
                 .bf16 = drawn.bf16};
    result got = run(&p, &drawn), expected = run(&p, &plain);
    compare_bits(&p, &drawn, &got, &expected);
    if (p.finite) compare_oracle(&p, &drawn, &got);
    free_result(&got);
    free_result(&expected);
    free_problem(&p);
    return 0;
}
