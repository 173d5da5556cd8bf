/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router's choice: probabilities over E experts, the K largest of them (the lower id wins a tie), their weights
 * renormalised to sum 1; and the way back, with the load-balancing term
 *     balance * E * sum over e of share[e] * mean over tokens of p[e],
 * share[e] being the share of all slots of the global batch that went to expert e.
 */
#ifndef FERRY_LM_ROUTER_H
#define FERRY_LM_ROUTER_H

#include <stdint.h>

typedef struct lm_router {
    int64_t experts, slots; /* E, K <= E */
} lm_router;

/* p[N, E] holds logits and becomes probabilities; ids[N, K], weights[N, K] are written. */
void lm_router_choose(const lm_router *router, float *p, int32_t *ids, float *weights, int64_t tokens);
/* dlogits[N, E] is written. pull[E] is the gradient of the load-balancing term with respect to every p[t][e]. */
void lm_router_back(const lm_router *router, float *dlogits, const float *dweights, const float *p, const int32_t *ids,
                    const float *weights, const float *pull, int64_t tokens);

#endif
