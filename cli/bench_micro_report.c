/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ferry bench --micro` says. Rates are bytes of rows that cross a link in one direction a second, of the slowest
 * rank; with a hot owner, of the owner's link. A completion signal's latency is what signal and answer add to the copy
 * of a block, without half a round trip of a flag for the answer's way back.
 */
#include "cli/bench_micro.h"
#include "cli/message.h"

#include <stdio.h>

/*
 * Figures to compare with. `earlier`: another program on two H200, rows of this size, 512 threads a multiprocessor.
 * `published`: what the authors of Mixture-of-Kittens (MoK) say of theirs on GB300.
 */
typedef struct earlier_rate {
    const char *name;
    double gb[MICRO_COUNTS]; /* 0: not measured */
} earlier_rate;

static const earlier_rate earlier[] = {
    {"pull one way, earlier", {0, 83, 164, 311, 367, 370, 372}},
    {"push one way, earlier", {0, 91, 182, 351, 347, 353, 368}},
    {"pull both ways, earlier", {0, 0, 0, 0, 0, 0, 334}},
    {"push both ways, earlier", {0, 0, 0, 0, 0, 0, 364}},
};
enum { EARLIER = sizeof earlier / sizeof *earlier };
static const double published_pull_us = 18, published_push_us = 103, earlier_trip_us = 2.6;

static const char *const direction_names[] = {"pull", "push"};
static const char *const pattern_names[] = {"one way", "both ways", "hot owner"};
static const char *const pattern_keys[] = {"one_way", "both_ways", "hot_owner"};

static const double row_bytes = (double)MICRO_ROWS * MICRO_ROW_BYTES;

static double larger(double a, double b) { return a > b ? a : b; }

static double row_rate(const bench_options *o, const micro_result *results, micro_direction d, micro_pattern p, int i) {
    double seconds = 0, senders = p == MICRO_HOT_OWNER ? (double)o->ranks - 1 : 1;
    for (int r = p == MICRO_HOT_OWNER ? 1 : 0; r < o->ranks; r++) seconds = larger(seconds, results[r].rows_s[d][p][i]);
    return seconds > 0 ? senders * row_bytes / seconds : 0;
}

/* Read plus written. */
static double local_rate(const bench_options *o, const micro_result *results, int i) {
    double seconds = 0;
    for (int r = 0; r < o->ranks; r++)
        seconds = larger(seconds, i < 0 ? results[r].engine_local_s : results[r].local_s[i]);
    return 2 * row_bytes / seconds;
}

static double engine_rate(const bench_options *o, const micro_result *results, int both) {
    double seconds = 0;
    for (int r = 0; r < o->ranks; r++) seconds = larger(seconds, results[r].engine_s[both]);
    return row_bytes / seconds;
}

static double latency(const micro_result *r, micro_direction d) {
    return r->signalled_s[d] - r->bare_s[d] - r->trip_s[d] / 2;
}

/* ---- JSON ---- */

static json_t *rates_json(const double *rates) {
    json_t *list = json_array();
    for (int i = 0; i < MICRO_COUNTS; i++)
        json_array_append_new(list, rates[i] > 0 ? json_real(rates[i]) : json_null());
    return list;
}

static json_t *rows_json(const bench_options *o, const micro_result *results, micro_direction d) {
    json_t *object = json_object();
    for (micro_pattern p = 0; p < MICRO_PATTERNS; p++) {
        double rates[MICRO_COUNTS];
        for (int i = 0; i < MICRO_COUNTS; i++) rates[i] = 1e-9 * row_rate(o, results, d, p, i);
        json_object_set_new(object, pattern_keys[p], rates_json(rates));
    }
    return object;
}

static json_t *signal_json(const micro_result *r, micro_direction d, double published) {
    return json_pack("{s:f,s:f,s:f,s:f,s:f}", "latency_us", 1e6 * latency(r, d), "round_trip_us", 1e6 * r->trip_s[d],
                     "block_us", 1e6 * r->bare_s[d], "block_and_signal_us", 1e6 * r->signalled_s[d], "published_us",
                     published);
}

static int report_json(const bench_options *o, const cli_devices *devices, const micro_result *results) {
    const char *no_peers = micro_no_peers(o, devices);
    double local[MICRO_COUNTS];
    json_t *counts = json_array(), *before = json_object();
    for (int i = 0; i < MICRO_COUNTS; i++) {
        json_array_append_new(counts, json_integer(micro_counts[i] ? micro_counts[i] : devices->processors));
        local[i] = 1e-9 * local_rate(o, results, i);
    }
    json_t *object = json_pack("{s:s,s:I,s:s,s:I,s:{s:i,s:s},s:i,s:i,s:o,s:o,s:f}", "title", "micro", "ranks",
                               (json_int_t)o->ranks, "mode", o->processes ? "processes" : "threads", "repeat",
                               (json_int_t)o->repeat, "gpus", "count", devices->count, "name", devices->name, "rows",
                               MICRO_ROWS, "row_bytes", MICRO_ROW_BYTES, "multiprocessors", counts, "local_gb_per_s",
                               rates_json(local), "local_copy_gb_per_s", 1e-9 * local_rate(o, results, -1));
    if (no_peers) {
        json_object_set_new(object, "not_measured_between_ranks", json_string(no_peers));
        json_decref(before);
        return cli_print_json(object);
    }
    for (micro_direction d = 0; d < MICRO_DIRECTIONS; d++)
        json_object_set_new(object, d == MICRO_PULL ? "pull_gb_per_s" : "push_gb_per_s", rows_json(o, results, d));
    for (int i = 0; i < EARLIER; i++) json_object_set_new(before, earlier[i].name, rates_json(earlier[i].gb));
    json_object_set_new(object, "earlier_gb_per_s", before);
    json_object_set_new(object, "copy_engine_gb_per_s",
                        json_pack("{s:f,s:f}", "one_way", 1e-9 * engine_rate(o, results, 0), "both_ways",
                                  1e-9 * engine_rate(o, results, 1)));
    json_object_set_new(object, "signal",
                        json_pack("{s:i,s:o,s:o}", "block_bytes", MICRO_BLOCK_BYTES, "pull",
                                  signal_json(results, MICRO_PULL, published_pull_us), "push",
                                  signal_json(results, MICRO_PUSH, published_push_us)));
    return cli_print_json(object);
}

/* ---- Text ---- */

static void print_rates(const char *name, const double *rates) {
    printf("%-24s", name);
    for (int i = 0; i < MICRO_COUNTS; i++) {
        if (rates[i] > 0)
            printf(" %6.0f", rates[i]);
        else
            printf(" %6s", "-");
    }
    printf("\n");
}

static void print_signal(const micro_result *r, micro_direction d, double published) {
    printf("signal of a %s%*s%.2f us after the block (%.2f us); flag there and back %.2f us; MoK publishes %.0f us\n",
           direction_names[d], 10, "", 1e6 * latency(r, d), 1e6 * r->bare_s[d], 1e6 * r->trip_s[d], published);
}

static void print_remote(const bench_options *o, const micro_result *results) {
    double rates[MICRO_COUNTS];
    char name[64];
    for (micro_direction d = 0; d < MICRO_DIRECTIONS; d++) {
        for (micro_pattern p = 0; p < MICRO_PATTERNS; p++) {
            for (int i = 0; i < MICRO_COUNTS; i++) rates[i] = 1e-9 * row_rate(o, results, d, p, i);
            snprintf(name, sizeof name, "%s %s", direction_names[d], pattern_names[p]);
            print_rates(name, rates);
        }
    }
    for (int i = 0; i < EARLIER; i++) print_rates(earlier[i].name, earlier[i].gb);
    printf("copy engine              one way %.0f, both ways %.0f GB/s\n", 1e-9 * engine_rate(o, results, 0),
           1e-9 * engine_rate(o, results, 1));
    print_signal(results, MICRO_PULL, published_pull_us);
    print_signal(results, MICRO_PUSH, published_push_us);
    printf("(earlier: two H200 by a separate program, flag there and back %.1f us between them; MoK: "
           "Mixture-of-Kittens, 64 GB300)\n",
           earlier_trip_us);
}

static int report_text(const bench_options *o, const cli_devices *devices, const micro_result *results) {
    const char *no_peers = micro_no_peers(o, devices);
    double local[MICRO_COUNTS];
    printf("micro     %d rows of %d bytes in random order, %d rank%s (%s) on %d x %s; GB/s in one direction by "
           "multiprocessors\n%-24s",
           MICRO_ROWS, MICRO_ROW_BYTES, (int)o->ranks, o->ranks == 1 ? "" : "s", o->processes ? "processes" : "threads",
           devices->count, devices->name, "");
    for (int i = 0; i < MICRO_COUNTS; i++) {
        local[i] = 1e-9 * local_rate(o, results, i);
        printf(" %6d", micro_counts[i] ? micro_counts[i] : devices->processors);
    }
    printf("\n");
    print_rates("local, read + written", local);
    printf("local copy engine        %.0f GB/s read + written\n", 1e-9 * local_rate(o, results, -1));
    if (no_peers)
        printf("between ranks            not measured: %s\n", no_peers);
    else
        print_remote(o, results);
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int bench_micro_report(const bench_options *o, const cli_devices *devices, const micro_result *results) {
    return o->json ? report_json(o, devices, results) : report_text(o, devices, results);
}
