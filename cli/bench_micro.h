/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry bench --micro`: what links and memory give by themselves, without a layer. */
#ifndef FERRY_CLI_BENCH_MICRO_H
#define FERRY_CLI_BENCH_MICRO_H

#include "cli/bench.h"

enum { MICRO_ROWS = 16384, MICRO_ROW_BYTES = 14336, MICRO_COUNTS = 7, MICRO_TURNS = 1000, MICRO_BLOCK_BYTES = 65536 };

/* Multiprocessors that copy; 0: all. */
extern const int micro_counts[MICRO_COUNTS];

typedef enum micro_direction { MICRO_PULL, MICRO_PUSH, MICRO_DIRECTIONS } micro_direction;

/* Who copies: rank 0 alone, with its peers in turn; every rank with its peers in turn; every rank with rank 0, whose
 * own rows stay on its device. */
typedef enum micro_pattern { MICRO_ONE_WAY, MICRO_BOTH_WAYS, MICRO_HOT_OWNER, MICRO_PATTERNS } micro_pattern;

/* One rank's medians, in seconds; 0: took no part. Signals are rank 0's, per turn. */
typedef struct micro_result {
    double rows_s[MICRO_DIRECTIONS][MICRO_PATTERNS][MICRO_COUNTS];
    double local_s[MICRO_COUNTS];         /* rows that stay on the device */
    double engine_s[2];                   /* all rows at once by the copy engine: one way, both ways */
    double engine_local_s;                /* on the device */
    double trip_s[MICRO_DIRECTIONS];      /* a flag there and back, nothing copied; PULL: on the device */
    double bare_s[MICRO_DIRECTIONS];      /* a block copied, no signal */
    double signalled_s[MICRO_DIRECTIONS]; /* a block copied, its signal, the answer */
} micro_result;

/* Why nothing between ranks was measured, or NULL. */
const char *micro_no_peers(const bench_options *o, const cli_devices *devices);

/* All of it: 0, or the exit code after a message. `gates` as in bench_job. */
int bench_micro(const bench_options *o, const cli_devices *devices, bench_gates *gates);

/* Prints the table, or the object of --json. */
int bench_micro_report(const bench_options *o, const cli_devices *devices, const micro_result *results);

#endif
