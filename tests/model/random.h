/* SPDX-License-Identifier: Apache-2.0 */
/* The only source of chance: the same numbers for the same seed, with every compiler as long as no expression draws
 * twice in an order that the language leaves open. */
#ifndef FERRY_MODEL_RANDOM_H
#define FERRY_MODEL_RANDOM_H

#include <cstdint>
#include <utility>
#include <vector>

inline uint64_t random_state;

inline uint64_t draw() { /* xorshift64* */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state * 0x2545F4914F6CDD1Du) >> 11;
}

inline void seed_random(uint64_t seed) {
    random_state = seed * 0x9E3779B97F4A7C15u + 12345;
    if (random_state == 0) random_state = 1;
    for (int i = 0; i < 8; i++) draw();
}

inline int below(int count) { return (int)(draw() % (uint64_t)count); }
inline int between(int low, int high) { return low + below(high - low + 1); }
inline bool chance(int percent) { return below(100) < percent; }

template <class T>
void shuffle(std::vector<T> &v) {
    for (int i = (int)v.size() - 1; i > 0; i--) std::swap(v[i], v[below(i + 1)]);
}

#endif
