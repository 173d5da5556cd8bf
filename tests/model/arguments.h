/* SPDX-License-Identifier: Apache-2.0 */
/* Which cases a model runs, as its command line says. */
#ifndef FERRY_MODEL_ARGUMENTS_H
#define FERRY_MODEL_ARGUMENTS_H

#include <cstdint>

struct arguments {
    const char *program;
    uint64_t cases; /* 0: for `seconds` */
    bool *verbose;  /* nullptr: the program has no -v */
    uint64_t seed = 1, one = 0;
    double seconds = 0;
    bool alone = false; /* `one` is all */
};

/* False: the usage is printed. */
bool read_arguments(int argc, char **argv, arguments &a);

#endif
