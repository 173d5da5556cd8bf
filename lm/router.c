/* SPDX-License-Identifier: Apache-2.0 */
/* The router: softmax, the best K, and the gradient through both. */
#include "lm/router.h"

#include "lm/dense.h"

#include <string.h>

/* The most probable expert that is not among the `taken` first ids. */
static int32_t best_left(const float *p, int64_t experts, const int32_t *ids, int64_t taken) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; e++) {
        int used = 0;
        for (int64_t k = 0; k < taken; k++) used |= ids[k] == e;
        if (!used && (best < 0 || p[e] > p[best])) best = e;
    }
    return best;
}

void lm_router_choose(const lm_router *router, float *p, int32_t *ids, float *weights, int64_t tokens) {
    int64_t experts = router->experts, slots = router->slots;
    for (int64_t t = 0; t < tokens; t++, p += experts, ids += slots, weights += slots) {
        float sum = 0;
        lm_softmax(p, experts, experts);
        for (int64_t k = 0; k < slots; k++) {
            ids[k] = best_left(p, experts, ids, k);
            sum += p[ids[k]];
        }
        for (int64_t k = 0; k < slots; k++) weights[k] = p[ids[k]] / sum;
    }
}

void lm_router_back(const lm_router *router, float *dlogits, const float *dweights, const float *p, const int32_t *ids,
                    const float *weights, const float *pull, int64_t tokens) {
    int64_t experts = router->experts, slots = router->slots;
    for (int64_t t = 0; t < tokens; t++, dlogits += experts, p += experts) {
        float sum = 0, along = 0;
        for (int64_t k = 0; k < slots; k++) {
            sum += p[ids[k]];
            along += dweights[k] * weights[k];
        }
        memcpy(dlogits, pull, (size_t)experts * sizeof(float));
        for (int64_t k = 0; k < slots; k++) dlogits[ids[k]] += (dweights[k] - along) / sum;
        lm_softmax_back(dlogits, p, experts);
        dweights += slots;
        ids += slots;
        weights += slots;
    }
}
