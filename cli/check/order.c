/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The documented orders of addition, to the bit: out and dx start from the shared expert's row and add slots ascending;
 * weight gradients add rows by source rank, token and slot. A batch in which one slot alone has an expert shows that
 * slot's term, since a sum of one term rounds nothing; from such terms the sums are made again here. A GPU's tensor
 * cores add 16 rows of a weight gradient at once, so there only out and dx can be made again.
 */
#include "cli/check/bits.h"
#include "cli/check/gpu.h"

enum { TOKENS = 6, SLOTS = 4, ALL_SLOTS = TOKENS * SLOTS, NO_SLOT = -1 };

static int64_t route_some(const check_problem *p, int64_t token, int64_t slot) {
    if (p->route_number != ALL_SLOTS && p->route_number != token * SLOTS + slot) return -1;
    return (token + slot % (SLOTS - 1)) % p->experts;
}

/* The first and the last slot of a token are one expert with opposite weights, so large that what is added between
 * them loses bits: another order of the same terms gives other bits. Powers of two make w * y exact. */
static void edit_opposed(check_batch *b) {
    static const float weights[SLOTS] = {0x1p17f, 1, -2, -0x1p17f};
    for (int64_t i = 0; i < TOKENS * SLOTS; i++) b->weights[i] = weights[i % SLOTS];
}

static check_result *run_slots(const check_case *c, int64_t which, int64_t shared) {
    check_problem problem = {.seed = 13,
                             .tokens = TOKENS,
                             .hidden = 40,
                             .intermediate = 24,
                             .shared = shared,
                             .experts = 3,
                             .slots = SLOTS,
                             .route = route_some,
                             .route_number = which,
                             .edit = edit_opposed};
    const check_way way = {.backend = (ferry_backend)c->options->backend};
    check_batch batch;
    check_fit_problem(c->options, &problem);
    CHECK_OR_RETURN(NULL, c, check_batch_make(&problem, &batch), "no memory for the batch");
    check_result *result = check_run(c, &batch, &way);
    check_batch_free(&batch);
    return result;
}

/* Element `index` of a tensor as the sum of its terms, each addition rounded to F32; `start` may be NULL. */
static float sum_terms(check_result *const *terms, const check_result *start, int id, int64_t index) {
    float sum = start ? (float)check_value(&start->tensor[id], index) : 0;
    for (int slot = 0; slot < ALL_SLOTS; slot++) sum += (float)check_value(&terms[slot]->tensor[id], index);
    return sum;
}

static void compare_sums(const check_case *c, const check_result *all, check_result *const *terms,
                         const check_result *shared) {
    int last = c->options->backend == FERRY_CUDA ? CHECK_DX : CHECK_DDOWN;
    for (int id = CHECK_OUT; id <= last; id++) {
        if (id == CHECK_DWEIGHTS) continue;
        int rows = id == CHECK_OUT || id == CHECK_DX;
        for (int64_t i = 0; i < all->tensor[id].count; i++) {
            float sum = sum_terms(terms, rows ? shared : NULL, id, i);
            double got = check_value(&all->tensor[id], i), expected = rows ? check_widen(check_bf16(sum)) : sum;
            CHECK_OR_RETURN(, c, got == expected, "%s element %lld is %a, in the documented order it is %a",
                            check_tensor_name((check_tensor_id)id), (long long)i, got, expected);
        }
    }
}

/* The sum must notice: added the other way round, some element of out has other bits. */
static void check_sensitive(const check_case *c, const check_result *all, check_result *const *terms,
                            const check_result *shared) {
    check_result *reversed[ALL_SLOTS];
    int64_t others = 0;
    for (int slot = 0; slot < ALL_SLOTS; slot++) reversed[slot] = terms[ALL_SLOTS - 1 - slot];
    for (int64_t i = 0; i < all->tensor[CHECK_OUT].count; i++) {
        float sum = sum_terms(reversed, shared, CHECK_OUT, i);
        others += check_value(&all->tensor[CHECK_OUT], i) != (double)check_widen(check_bf16(sum));
    }
    if (others == 0) check_fail(c, "the terms give the same bits in any order: nothing was tested");
}

void check_documented_order(const check_case *c) {
    enum { SHARED = 16 };
    check_result *terms[ALL_SLOTS] = {NULL};
    check_result *shared = run_slots(c, NO_SLOT, SHARED), *all = run_slots(c, ALL_SLOTS, SHARED);
    for (int slot = 0; slot < ALL_SLOTS && !check_failed(c); slot++) terms[slot] = run_slots(c, slot, 0);
    if (!check_failed(c)) {
        compare_sums(c, all, terms, shared);
        check_sensitive(c, all, terms, shared);
    }
    for (int slot = 0; slot < ALL_SLOTS; slot++) check_result_free(terms[slot]);
    check_result_free(all);
    check_result_free(shared);
}
