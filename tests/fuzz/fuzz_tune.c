/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tune files: the bytes are a file's. What a line is taken for is printed as a line of the same entry, every value is
 * one that a layer can take, and the file as a whole finds the last of its entries with a key, alone in a file or
 * among all lines.
 */
#include "tests/fuzz/input.h"

#include "core/tune.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file in memory that a path leads to. */
static char path[64];
static int file = -1;

static void write_file(const uint8_t *data, size_t size) {
    if (file < 0) file = memfd_create("tune", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size) exit(2);
}

/* What an entry leaves for a layer: its own choices stay, and somebody is left to multiply. */
static void check_apply(const fy_tune_entry *e) {
    for (int given = 0; given < 2; given++) {
        ferry_layer_config config, before;
        int comm_workers = 1;
        ferry_layer_config_init(&config);
        config.minibatch_rows = 64 * given;
        config.pull_warps = config.fan_out = config.comm_sms = given;
        before = config;
        int tuned = fy_tune_apply(e, &config, given ? NULL : &comm_workers);
        FUZZ_CHECK(!given || (tuned == 0 && memcmp(&before, &config, sizeof config) == 0), "%d was tuned", tuned);
        FUZZ_CHECK(config.minibatch_rows >= 0 && config.minibatch_rows <= INT64_C(1) << 40, "rows");
        FUZZ_CHECK(config.pull_warps >= 0 && config.pull_warps <= 3, "%d warps", config.pull_warps);
        FUZZ_CHECK(config.fan_out >= 0 && config.fan_out <= 2, "fan_out %d", config.fan_out);
        FUZZ_CHECK(config.comm_sms >= 0 && (given || config.comm_sms < e->workers), "%d comm_sms", config.comm_sms);
        FUZZ_CHECK(comm_workers == 1 || (comm_workers > 0 && comm_workers < e->workers), "%d workers", comm_workers);
    }
}

/* The line's entry, if it is one, has a line of its own that says the same. */
static int check_line(const char *line, fy_tune_entry *entry) {
    fy_tune_entry again;
    char own[FY_TUNE_LINE];
    memset(entry, 0x5a, sizeof *entry);
    if (!fy_tune_parse(line, entry)) {
        for (size_t i = 0; i < sizeof *entry; i++)
            FUZZ_CHECK(((const uint8_t *)entry)[i] == 0x5a, "no entry, but something was written");
        return 0;
    }
    fy_tune_print(entry, own);
    FUZZ_CHECK(strlen(own) > 0 && own[strlen(own) - 1] == '\n', "the printed line is '%s'", own);
    FUZZ_CHECK(fy_tune_parse(own, &again) && memcmp(entry, &again, sizeof again) == 0, "'%s' is not '%s'", own, line);
    FUZZ_CHECK(fy_tune_same_key(entry, &again), "another key");
    check_apply(entry);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    fy_tune_entry last = {0}, entry;
    int entries = 0;
    if (!text) exit(2);
    memcpy(text, data, size);
    text[size] = '\0';
    for (size_t begin = 0; begin < size;) {
        char *newline = memchr(text + begin, '\n', size - begin);
        size_t end = newline ? (size_t)(newline - text) : size;
        text[end] = '\0';
        if (strlen(text + begin) == end - begin && check_line(text + begin, &entry)) {
            last = entry;
            entries++;
        }
        begin = end + 1;
    }
    write_file(data, size);
    if (entries > 0) {
        entry = last;
        entry.minibatch_rows = entry.pull_warps = -1;
        FUZZ_CHECK(fy_tune_find(path, &entry) == 1 && memcmp(&entry, &last, sizeof last) == 0,
                   "the last entry is lost");
    }
    fy_tune_entry nobody = last;
    memset(nobody.machine, 0, sizeof nobody.machine); /* no line has an empty name */
    FUZZ_CHECK(fy_tune_find(path, &nobody) == 0, "an entry of nobody's");
    free(text);
    return 0;
}
