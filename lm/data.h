/* SPDX-License-Identifier: Apache-2.0 */
/* The text: its first nine tenths are for training, the rest is held out. Tokens are bytes. */
#ifndef FERRY_LM_DATA_H
#define FERRY_LM_DATA_H

#include <stdint.h>

typedef struct lm_text {
    unsigned char *bytes;
    int64_t size;
    int64_t train; /* bytes [0, train) are for training */
    /* H(b[t] | b[t-1]) of the whole text's own bigram frequencies, in nats per byte: what a model that sees one byte
     * back and knows these frequencies exactly would score. */
    double bigram_entropy;
} lm_text;

/* Reads a file; fails when it cannot be read, or when its held-out part has fewer than `windows` windows of
 * `length` bytes and their next byte. */
int lm_text_load(lm_text *text, const char *path, int64_t windows, int64_t length);
void lm_text_free(lm_text *text);

/* Training window `sequence` of step `step`: length + 1 bytes. It depends on the text, the seed, the step and the
 * sequence's index in the global batch, `sequences` being the size of that batch. */
const unsigned char *lm_text_sample(const lm_text *text, uint64_t seed, int64_t step, int64_t sequence,
                                    int64_t sequences, int64_t length);
/* Held-out windows that do not overlap: their number, and window `index` (length + 1 bytes). */
int64_t lm_text_windows(const lm_text *text, int64_t length);
const unsigned char *lm_text_window(const lm_text *text, int64_t index, int64_t length);

#endif
