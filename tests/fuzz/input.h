/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all fuzzers share: choices drawn from the fuzzer's bytes, and how a broken property ends the run. When the
 * bytes run out every choice is 0, so any input is a whole one and a shorter input is a simpler one.
 */
#ifndef FERRY_FUZZ_INPUT_H
#define FERRY_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The entry points that libFuzzer calls. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

typedef struct fuzz_input {
    const uint8_t *next, *end;
} fuzz_input;

static inline fuzz_input fuzz_input_of(const uint8_t *data, size_t size) {
    return (fuzz_input){data, size ? data + size : data};
}

static inline size_t fuzz_left(const fuzz_input *in) { return (size_t)(in->end - in->next); }

static inline uint8_t fuzz_byte(fuzz_input *in) { return in->next < in->end ? *in->next++ : 0; }

/* One of low..high, at most 256 of them. */
static inline int64_t fuzz_choice(fuzz_input *in, int64_t low, int64_t high) {
    return low + fuzz_byte(in) % (high - low + 1);
}

/* The bytes up to a zero or a line end, with a zero behind them; for the caller to free. */
static inline char *fuzz_text(fuzz_input *in) {
    size_t length = 0;
    while (length < fuzz_left(in) && in->next[length] != 0 && in->next[length] != '\n') length++;
    char *text = malloc(length + 1);
    if (!text) exit(2);
    for (size_t i = 0; i < length; i++) text[i] = (char)in->next[i];
    text[length] = '\0';
    in->next += length < fuzz_left(in) ? length + 1 : length;
    return text;
}

/* A property that does not hold is a finding like a crash. */
#define FUZZ_CHECK(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);                                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
