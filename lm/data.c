/* SPDX-License-Identifier: Apache-2.0 */
/* Loading, splitting and sampling a text, and its bigram entropy. */
#include "lm/data.h"

#include "lm/error.h"
#include "lm/random.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads to the end rather than asking for the size, so that pipes are texts too. */
static int read_all(lm_text *text, FILE *file, const char *path) {
    size_t room = 0, used = 0;
    for (;;) {
        if (used == room) {
            room = room ? 2 * room : (size_t)1 << 20;
            unsigned char *more = realloc(text->bytes, room);
            if (!more) return lm_fail("no memory for the text %s: %zu bytes", path, room);
            text->bytes = more;
        }
        size_t got = fread(text->bytes + used, 1, room - used, file);
        used += got;
        if (got == 0) break;
    }
    if (ferror(file)) return lm_fail("cannot read the text %s: %s", path, strerror(errno));
    text->size = (int64_t)used;
    return 0;
}

static int measure_bigrams(lm_text *text) {
    int64_t *pairs = calloc(256 * 256, sizeof *pairs), pair_count = text->size - 1;
    if (!pairs) return lm_fail("no memory for the bigram counts of the text");
    for (int64_t i = 0; i < pair_count; i++) pairs[text->bytes[i] * 256 + text->bytes[i + 1]]++;
    double entropy = 0;
    for (int64_t first = 0; first < 256; first++) {
        int64_t total = 0;
        for (int64_t next = 0; next < 256; next++) total += pairs[first * 256 + next];
        for (int64_t next = 0; next < 256; next++) {
            double count = (double)pairs[first * 256 + next];
            if (count > 0) entropy += count * log((double)total / count);
        }
    }
    free(pairs);
    text->bigram_entropy = entropy / (double)pair_count;
    return 0;
}

int lm_text_load(lm_text *text, const char *path, int64_t windows, int64_t length) {
    *text = (lm_text){0};
    FILE *file = fopen(path, "rb");
    if (!file) return lm_fail("cannot open the text %s: %s", path, strerror(errno));
    int bad = read_all(text, file, path);
    fclose(file);
    text->train = text->size - text->size / 10;
    if (!bad && lm_text_windows(text, length) < windows) {
        int64_t least = 10 * (windows * length + 1);
        bad = lm_fail("the text %s is too short: %lld bytes, expected at least %lld, since a tenth is held out and "
                      "%lld windows of %lld bytes must fit there",
                      path, (long long)text->size, (long long)least, (long long)windows, (long long)length);
    }
    if (!bad) bad = measure_bigrams(text);
    if (bad) lm_text_free(text);
    return bad;
}

void lm_text_free(lm_text *text) {
    free(text->bytes);
    *text = (lm_text){0};
}

const unsigned char *lm_text_sample(const lm_text *text, uint64_t seed, int64_t step, int64_t sequence,
                                    int64_t sequences, int64_t length) {
    uint64_t index = (uint64_t)step * (uint64_t)sequences + (uint64_t)sequence;
    return text->bytes + lm_random_below(seed, LM_RANDOM_BATCH, index, (uint64_t)(text->train - length));
}

int64_t lm_text_windows(const lm_text *text, int64_t length) {
    int64_t held_out = text->size - text->train;
    return held_out > 0 ? (held_out - 1) / length : 0;
}

const unsigned char *lm_text_window(const lm_text *text, int64_t index, int64_t length) {
    return text->bytes + text->train + index * length;
}
