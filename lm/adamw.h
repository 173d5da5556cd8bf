/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW: decoupled weight decay, bias-corrected moments. */
#ifndef FERRY_LM_ADAMW_H
#define FERRY_LM_ADAMW_H

#include "lm/layout.h"

/* The learning rate of step `step` (from 0). */
double lm_learning_rate(const lm_config *config, int64_t step);

/* What a step's update of one kind of tensor multiplies by. */
typedef struct lm_adamw_factors {
    float keep1, keep2;   /* of the old moments */
    float rate, rescale2; /* bias corrections included */
    float shrink;         /* of the old values */
} lm_adamw_factors;

lm_adamw_factors lm_adamw_factors_of(const lm_config *config, int64_t step, int decays);

/* One update of `count` values at step `step` (from 0) with the gradient times `scale`. */
void lm_adamw(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
              const float *gradient, int64_t count, double scale, int decays);

#endif
