/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations and arguments that cannot be: the status, and a sentence that names the field and what was expected.
 */
#include "said.h"

#include <math.h>

static ferry_layer_config good_config(void) {
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = config.intermediate = 4;
    config.experts = 3;
    config.slots = 2;
    config.max_tokens = 5;
    return config;
}

static void refuse_config(const ferry_layer_config *config, ferry_status wanted, const char *text) {
    ferry_plan plan = {.size = sizeof plan, .max_rows = -7};
    assert_said(ferry_layer_plan(config, FERRY_CPU, 0, 2, 1, 1, &plan), wanted, text);
    assert_int_equal(plan.max_rows, -7); /* outputs are written on success only */
}

static void test_layer_configs(void **state) {
    (void)state;
    ferry_plan plan = {.size = sizeof plan};
    ferry_layer_config c = good_config();
    assert_int_equal(ferry_layer_plan(&c, FERRY_CPU, 0, 2, 1, 1, &plan), FERRY_OK);

#define REFUSED(field, value, status, text)                                                                            \
    do {                                                                                                               \
        c = good_config();                                                                                             \
        c.field = value;                                                                                               \
        refuse_config(&c, status, text);                                                                               \
    } while (0)
    REFUSED(hidden, 0, FERRY_E_INVALID, "hidden");
    REFUSED(intermediate, -1, FERRY_E_INVALID, "intermediate");
    REFUSED(shared, -1, FERRY_E_INVALID, "shared");
    REFUSED(experts, 0, FERRY_E_INVALID, "experts");
    REFUSED(slots, 0, FERRY_E_INVALID, "slots");
    REFUSED(max_tokens, -1, FERRY_E_INVALID, "max_tokens");
    REFUSED(context_rows, -2, FERRY_E_INVALID, "context_rows");
    REFUSED(precision, (ferry_precision)9, FERRY_E_UNSUPPORTED, "precision 9, expected FERRY_PRECISION_BF16");
    REFUSED(order, (ferry_order)9, FERRY_E_UNSUPPORTED, "order 9, expected FERRY_ORDER_EXACT");
    REFUSED(swiglu_limit, NAN, FERRY_E_INVALID, "swiglu_limit is nan, expected a finite number >= 0");
    REFUSED(swiglu_limit, INFINITY, FERRY_E_INVALID, "swiglu_limit is inf");
    REFUSED(swiglu_limit, -1, FERRY_E_INVALID, "swiglu_limit is -1");
    REFUSED(max_tokens, INT32_MAX / 2, FERRY_E_UNSUPPORTED, "expected less than 2^30 rows");
    const int32_t map[] = {0, 2, 1};
    REFUSED(expert_rank, map, FERRY_E_INVALID, "expert_rank[1] is 2, expected a rank 0 to 1");
#undef REFUSED
}

/* ---- Arguments of a forward, on one rank ---- */

typedef struct one_rank {
    ferry_thread_group *group;
    ferry_comm *comm;
    ferry_layer *layer, *other;
    ferry_context *context; /* of `other` */
    int32_t tokens, ids[10];
    uint16_t x[20], out[20], weight[48];
    float weights[10];
    void *table[3];
} one_rank;

static void open_one(one_rank *s) {
    ferry_layer_config config = good_config();
    ferry_comm_config comm_config;
    ferry_comm_config_init(&comm_config);
    assert_int_equal(ferry_thread_group_create(1, &s->group), FERRY_OK);
    assert_int_equal(ferry_thread_group_bootstrap(s->group, 0, &comm_config.bootstrap), FERRY_OK);
    assert_int_equal(ferry_comm_create(&comm_config, &s->comm), FERRY_OK);
    assert_int_equal(ferry_layer_create(s->comm, &config, &s->layer), FERRY_OK);
    assert_int_equal(ferry_layer_create(s->comm, &config, &s->other), FERRY_OK);
    assert_int_equal(ferry_context_create(s->other, NULL, &s->context), FERRY_OK);
    s->tokens = 5;
}

static void close_one(one_rank *s) {
    ferry_context_destroy(s->context);
    ferry_layer_destroy(s->other);
    ferry_layer_destroy(s->layer);
    ferry_comm_destroy(s->comm);
    ferry_thread_group_destroy(s->group);
}

static ferry_forward_args good_args(one_rank *s) {
    const ferry_matrices matrices = {.base = s->weight, .expert_stride = 16, .row_stride = 4, .dtype = FERRY_BF16};
    ferry_forward_args args;
    ferry_forward_args_init(&args);
    args.num_tokens = &s->tokens;
    args.x = s->x;
    args.ids = s->ids;
    args.ids_dtype = FERRY_I32;
    args.weights = s->weights;
    args.params = (ferry_weights){.gate = matrices, .up = matrices, .down = matrices};
    args.out = s->out;
    return args;
}

static void test_forward_arguments(void **state) {
    (void)state;
    one_rank s = {.tokens = 0};
    open_one(&s);
    ferry_forward_args a = good_args(&s);
    assert_int_equal(ferry_forward(s.layer, &a), FERRY_OK);

#define REFUSED(field, value, status, text)                                                                            \
    do {                                                                                                               \
        a = good_args(&s);                                                                                             \
        a.field = value;                                                                                               \
        assert_said(ferry_forward(s.layer, &a), status, text);                                                         \
    } while (0)
    REFUSED(size, 1, FERRY_E_INVALID, "size");
    REFUSED(num_tokens, NULL, FERRY_E_INVALID, "num_tokens is NULL");
    REFUSED(x, NULL, FERRY_E_INVALID, "x is NULL");
    REFUSED(x_stride, 3, FERRY_E_INVALID, "row stride of x is 3 elements, expected at least 4");
    REFUSED(ids_dtype, FERRY_F64, FERRY_E_UNSUPPORTED, "ids have dtype F64, expected I32 or I64");
    REFUSED(ids_dtype, FERRY_F16, FERRY_E_UNSUPPORTED, "ids have dtype F16");
    REFUSED(ids_dtype, (ferry_dtype)99, FERRY_E_UNSUPPORTED, "ids have dtype an unknown dtype");
    REFUSED(context, s.context, FERRY_E_INVALID, "the context belongs to another layer");
    REFUSED(params.up.dtype, FERRY_F32, FERRY_E_UNSUPPORTED, "F32, expected BF16");
    REFUSED(params.up.dtype, FERRY_I64, FERRY_E_UNSUPPORTED, "I64, expected BF16");
    REFUSED(params.gate.base, NULL, FERRY_E_INVALID, "gate");
    REFUSED(params.down.row_stride, 3, FERRY_E_INVALID, "row stride of down is 3 elements, expected at least 4");
    s.table[0] = s.table[2] = s.weight;
    REFUSED(params.gate.table, s.table, FERRY_E_INVALID, "gate.table[1] is NULL");
#undef REFUSED
    assert_said(ferry_forward(NULL, &a), FERRY_E_INVALID, "NULL");
    assert_said(ferry_forward(s.layer, NULL), FERRY_E_INVALID, "NULL");

    a = good_args(&s); /* none of it has ended the communicator */
    assert_int_equal(ferry_forward(s.layer, &a), FERRY_OK);
    close_one(&s);
}

/* A rank without tokens has nothing to point at; its gradients are there all the same. */
static void test_no_tokens_no_pointers(void **state) {
    (void)state;
    one_rank s = {.tokens = 0};
    open_one(&s);
    s.tokens = 0;
    ferry_forward_args a = good_args(&s);
    a.x = a.ids = a.weights = a.out = NULL;
    a.context = s.context;
    assert_int_equal(ferry_forward(s.other, &a), FERRY_OK);

    float gradient[48];
    for (int i = 0; i < 48; i++) gradient[i] = NAN;
    ferry_backward_args b;
    ferry_backward_args_init(&b);
    b.context = s.context;
    b.params = a.params;
    b.grads.gate.to = (ferry_matrices){.base = gradient, .expert_stride = 16, .row_stride = 4, .dtype = FERRY_F32};
    assert_int_equal(ferry_backward(s.other, &b), FERRY_OK);
    for (int i = 0; i < 48; i++) assert_true(gradient[i] == 0.0f);

    s.tokens = 1; /* now there is something to point at */
    assert_said(ferry_forward(s.other, &a), FERRY_E_INVALID, "x is NULL, expected memory of 1 tokens");
    close_one(&s);
}

static void test_gradients_do_not_overlap(void **state) {
    (void)state;
    one_rank s = {.tokens = 0};
    open_one(&s);
    ferry_forward_args a = good_args(&s);
    a.context = s.context;
    assert_int_equal(ferry_forward(s.other, &a), FERRY_OK);
    float gradient[48];
    ferry_backward_args b;
    ferry_backward_args_init(&b);
    b.context = s.context;
    b.params = a.params;
    b.dout = s.x;
    b.dx = s.out;
    b.grads.down.to = (ferry_matrices){.base = gradient, .expert_stride = 15, .row_stride = 4, .dtype = FERRY_F32};
    assert_said(ferry_backward(s.other, &b), FERRY_E_INVALID,
                "expert stride of grads.down is 15 elements, expected at "
                "least 16");
    b.grads.down.to.expert_stride = -16;
    b.grads.down.to.base = gradient + 32;
    assert_int_equal(ferry_backward(s.other, &b), FERRY_OK);
    close_one(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_configs),
        cmocka_unit_test(test_forward_arguments),
        cmocka_unit_test(test_no_tokens_no_pointers),
        cmocka_unit_test(test_gradients_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
