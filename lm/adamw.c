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

LM_CLONES static void step_values(float *value, float *moment1, float *moment2, const float *gradient, int64_t count,
                                  float scale, float keep1, float keep2, float rate, float rescale2, float shrink) {
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
    double rate = lm_learning_rate(config, step), n = (double)(step + 1);
    double bias1 = 1 - pow(config->beta1, n), bias2 = 1 - pow(config->beta2, n);
    step_values(value, moment1, moment2, gradient, count, (float)scale, (float)config->beta1, (float)config->beta2,
                (float)(rate / bias1), (float)(1 / bias2), (float)(decays ? 1 - rate * config->weight_decay : 1));
}
