/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers without state: each is a function of (seed, purpose, index) through the Philox 4x32-10 counter
 * generator, so a value does not depend on who asks for it, when, or on how many ranks there are. Integer arithmetic
 * up to the last rounding: the same bits on every machine.
 */
#ifndef FERRY_LM_RANDOM_H
#define FERRY_LM_RANDOM_H

#include <stdint.h>

/* What a number is for. Initial values of tensor i use LM_RANDOM_TENSOR + i. */
enum { LM_RANDOM_BATCH = 1, LM_RANDOM_SAMPLE = 2, LM_RANDOM_TENSOR = 1000 };

typedef struct lm_words {
    uint32_t word[4];
} lm_words;

static inline lm_words lm_philox(lm_words counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * counter.word[0], b = (uint64_t)0xCD9E8D57u * counter.word[2];
        counter = (lm_words){{(uint32_t)(b >> 32) ^ counter.word[1] ^ key0, (uint32_t)b,
                              (uint32_t)(a >> 32) ^ counter.word[3] ^ key1, (uint32_t)a}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

static inline lm_words lm_random(uint64_t seed, uint32_t purpose, uint64_t index) {
    lm_words counter = {{(uint32_t)index, (uint32_t)(index >> 32), purpose, 0}};
    return lm_philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Uniform in 0 .. limit - 1, limit >= 1. */
static inline uint64_t lm_random_below(uint64_t seed, uint32_t purpose, uint64_t index, uint64_t limit) {
    lm_words r = lm_random(seed, purpose, index);
    return (((uint64_t)r.word[0] << 32) | r.word[1]) % limit;
}

/* Uniform in [0, 1). */
static inline double lm_random_uniform(uint64_t seed, uint32_t purpose, uint64_t index) {
    lm_words r = lm_random(seed, purpose, index);
    return (double)((((uint64_t)r.word[0] << 32) | r.word[1]) >> 11) * 0x1p-53;
}

/* Mean 0, variance 1, bell-shaped (the sum of four uniforms): enough for initial weights, and free of libm. */
static inline float lm_random_normal(uint64_t seed, uint32_t purpose, uint64_t index) {
    lm_words r = lm_random(seed, purpose, index);
    int64_t sum = (int64_t)r.word[0] + r.word[1] + r.word[2] + r.word[3] - ((int64_t)2 << 32);
    return (float)((double)sum * (1.7320508075688772 * 0x1p-32));
}

#endif
