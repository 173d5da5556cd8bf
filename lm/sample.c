/* SPDX-License-Identifier: Apache-2.0 */
/* Generated text. Rank 0 has the sequence; the others pass no tokens but lend their experts. */
#include "lm/error.h"
#include "lm/random.h"
#include "lm/trainer.h"

#include "lm/dense.h"

#include <stdlib.h>
#include <string.h>

/* Draws from the softmax of logits / temperature. */
static unsigned char draw(float *logits, double temperature, double uniform) {
    for (int i = 0; i < LM_BYTES; i++) logits[i] = (float)((double)logits[i] / temperature);
    lm_softmax(logits, LM_BYTES, LM_BYTES);
    int last = 0;
    for (int i = 0; i < LM_BYTES; i++) {
        if (logits[i] <= 0) continue;
        last = i;
        uniform -= (double)logits[i];
        if (uniform < 0) break;
    }
    return (unsigned char)last;
}

int lm_sample(lm_model *model, const unsigned char *prompt, int64_t prompt_length, double temperature, int64_t count,
              unsigned char *bytes) {
    int64_t length = model->config.length, known = prompt_length < length ? prompt_length : length;
    unsigned char *window = calloc(1, (size_t)length);
    const unsigned char *windows[1] = {window};
    float *logits = malloc(LM_BYTES * sizeof *logits);
    int bad = window && logits ? 0 : lm_fail("no memory for a sample");
    if (!bad) memcpy(window, prompt + prompt_length - known, (size_t)known);
    for (int64_t i = 0; i < count && !bad; i++) {
        bad = lm_forward(model, windows, model->rank == 0 ? 1 : 0, 0);
        if (!bad) bad = model->ops->wait();
        if (bad || model->rank != 0) continue;
        bad = model->ops->get(logits, lm_logits(model, 0) + (known - 1) * LM_BYTES, LM_BYTES * sizeof *logits);
        if (bad) break;
        bytes[i] = draw(logits, temperature, lm_random_uniform(model->config.seed, LM_RANDOM_SAMPLE, (uint64_t)i));
        if (known == length) memmove(window, window + 1, (size_t)(--known));
        window[known++] = bytes[i];
    }
    free(logits);
    free(window);
    return bad;
}
