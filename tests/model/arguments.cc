/* SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static bool usage(const char *program, uint64_t cases, bool verbose) {
    std::fprintf(stderr,
                 "usage: %s [--seconds S | --cases N] [--seed S] [--case SEED]%s\n"
                 "  --seconds S  runs cases for so long\n"
                 "  --cases N    runs so many (default %llu)\n"
                 "  --seed S     which ones (default 1)\n"
                 "  --case SEED  runs this one, as a failure has named it\n%s",
                 program, verbose ? " [-v]" : "", (unsigned long long)cases,
                 verbose ? "  -v           prints what workers of a case begin and wait for\n" : "");
    return false;
}

bool read_arguments(int argc, char **argv, arguments &a) {
    uint64_t usual = a.cases;
    for (int i = 1; i < argc; i++) {
        if (a.verbose && !std::strcmp(argv[i], "-v")) {
            *a.verbose = true;
            continue;
        }
        if (i + 1 == argc) return usage(a.program, usual, a.verbose);
        const char *name = argv[i], *value = argv[++i];
        if (!std::strcmp(name, "--seconds"))
            a.cases = 0, a.seconds = std::atof(value);
        else if (!std::strcmp(name, "--cases"))
            a.cases = std::strtoull(value, nullptr, 10);
        else if (!std::strcmp(name, "--seed"))
            a.seed = std::strtoull(value, nullptr, 10);
        else if (!std::strcmp(name, "--case"))
            a.one = std::strtoull(value, nullptr, 10), a.alone = true;
        else
            return usage(a.program, usual, a.verbose);
    }
    return a.seconds > 0 || a.cases > 0 || a.alone || usage(a.program, usual, a.verbose);
}
