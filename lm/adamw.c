/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer and its schedule. */
#include "lm/adamw.h"

#include "lm/vector.h"

#include <math.h>

double lm_learning_rate(const lm_config *config, int64_t step) {
    int64_t warmup = config->warmup_steps, decay = config->decay_steps;
    double top = config->learning_rate;
    if (step < warmup) return top * (double)(step + 1) / (double)warmup;
    if (step >= decay) return config->floor;
    double along = (double)(step - warmup) / (double)(decay - warmup);
    return config->floor + (top - config->floor) * 0.5 * (1 + cos(3.14159265358979323846 * along));
}

lm_adamw_factors lm_adamw_factors_of(const lm_config *config, int64_t step, int decays) {
    double rate = lm_learning_rate(config, step), n = (double)(step + 1);
    double bias1 = 1 - pow(config->beta1, n), bias2 = 1 - pow(config->beta2, n);
    return (lm_adamw_factors){.keep1 = (float)config->beta1,
                              .keep2 = (float)config->beta2,
                              .rate = (float)(rate / bias1),
                              .rescale2 = (float)(1 / bias2),
                              .shrink = (float)(decays ? 1 - rate * config->weight_decay : 1)};
}

LM_CLONES static void step_values(const lm_adamw_factors *f, float *value, float *moment1, float *moment2,
                                  const float *gradient, int64_t count, float scale) {
    float keep1 = f->keep1, keep2 = f->keep2, rate = f->rate, rescale2 = f->rescale2, shrink = f->shrink;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        float m = keep1 * moment1[i] + (1.0f - keep1) * g;
        float v = keep2 * moment2[i] + (1.0f - keep2) * (g * g);
        moment1[i] = m;
        moment2[i] = v;
        value[i] = value[i] * shrink - rate * m / (sqrtf(v * rescale2) + 1e-8f);
    }
}

void lm_adamw(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
              const float *gradient, int64_t count, double scale, int decays) {
    lm_adamw_factors factors = lm_adamw_factors_of(config, step, decays);
    step_values(&factors, value, moment1, moment2, gradient, count, (float)scale);
}
