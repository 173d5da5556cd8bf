/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing and showing tune files. A new file is written beside the old one and takes its name; writers of one folder
 * take turns.
 */
#include "cli/message.h"
#include "cli/tune.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Writing ---- */

static void folder_of(const char *path, char *to, size_t room) {
    const char *slash = strrchr(path, '/');
    if (slash == path)
        snprintf(to, room, "/");
    else if (slash)
        snprintf(to, room, "%.*s", (int)(slash - path), path);
    else
        snprintf(to, room, ".");
}

/* The folder, and those above it that are missing. */
static int make_folder(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s", folder);
    for (char *c = path + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        mkdir(path, 0777);
        *c = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

/* Why the file is none to read. */
static const char *why_not(void) {
    return errno == EINVAL ? "not a plain file" : errno == EFBIG ? "too large: layers pass it over" : strerror(errno);
}

/* Why layers find nothing at the path: no file, or a file of something else. NULL for tune files of any version and for
 * empty files. */
static const char *fault_of(const char *path) {
    char *line = NULL;
    size_t room = 0;
    FILE *file = fy_tune_open(path);
    if (!file) return why_not();
    int lines = 0, good = 0;
    for (; !good && getline(&line, &room, file) > 0; lines++) good = fy_tune_form(line);
    free(line);
    fclose(file);
    return good || lines == 0 ? NULL : "not a tune file: no line of it begins with 'ferry-tune-'";
}

/* A file may end without a newline; what is added begins on a line of its own. */
static int put_line(FILE *to, const char *line, size_t length) {
    int done = fwrite(line, 1, length, to) == length;
    if (length > 0 && line[length - 1] != '\n') done &= putc('\n', to) != EOF;
    return done;
}

/* All of `from` but entries of the same key, then the entry. */
static int copy_with(FILE *from, FILE *to, const fy_tune_entry *entry) {
    char *line = NULL, own[FY_TUNE_LINE];
    size_t room = 0;
    ssize_t length;
    int done = 1;
    while (from && done && (length = getline(&line, &room, from)) > 0) {
        fy_tune_entry here;
        int same = strlen(line) == (size_t)length && fy_tune_parse(line, &here) && fy_tune_same_key(&here, entry);
        if (!same) done = put_line(to, line, (size_t)length);
    }
    free(line);
    fy_tune_print(entry, own);
    return done && !(from && ferror(from)) && put_line(to, own, strlen(own));
}

static int replace(const char *path, const fy_tune_entry *entry) {
    char fresh[4096 + 16];
    snprintf(fresh, sizeof fresh, "%s.XXXXXX", path);
    FILE *from = fy_tune_open(path);
    if (!from && errno != ENOENT) return cli_fail("%s: %s", path, why_not());
    int fd = mkstemp(fresh);
    FILE *to = fd < 0 ? NULL : fdopen(fd, "w");
    int done = to && fchmod(fd, 0644) == 0 && copy_with(from, to, entry) && fflush(to) == 0 && fsync(fd) == 0;
    if (to) done = fclose(to) == 0 && done;
    if (from) fclose(from);
    if (done && rename(fresh, path) == 0) return CLI_OK;
    int code = cli_fail("%s: cannot be written: %s", path, strerror(errno));
    if (fd >= 0) unlink(fresh);
    return code;
}

int tune_file_check(const char *path, int named) {
    char folder[4096];
    folder_of(path, folder, sizeof folder);
    if ((!named && !make_folder(folder)) || access(folder, W_OK | X_OK) != 0)
        return cli_fail("%s: no folder for the tune file: %s", folder, strerror(errno));
    const char *fault = access(path, F_OK) == 0 ? fault_of(path) : NULL;
    return fault ? cli_fail("%s: %s", path, fault) : CLI_OK;
}

void tune_file_remark(const char *path) {
    const char *fault = path && *path ? fault_of(path) : NULL;
    if (fault) cli_note("--tune-file: %s: %s; nothing comes from it", path, fault);
}

int tune_file_put(const char *path, const fy_tune_entry *entry) {
    char folder[4096];
    folder_of(path, folder, sizeof folder);
    int turn = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (turn < 0) return cli_fail("%s: no folder for the tune file: %s", folder, strerror(errno));
    flock(turn, LOCK_EX);
    int code = replace(path, entry);
    close(turn);
    return code;
}

/* ---- Showing ---- */

static const char *const fan_out_words[] = {"by rule", "once", "each"};

void tune_values(const fy_tune_entry *e, char *to, size_t room) {
    size_t n = 0;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"minibatch_rows", e->minibatch_rows},
                   {"pull_warps", e->pull_warps},
                   {"comm_sms", e->comm_sms},
                   {"comm_workers", e->comm_workers}};
    to[0] = '\0';
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value && n < room)
            n += (size_t)snprintf(to + n, room - n, "%s%s %" PRId64, n ? ", " : "", numbers[i].name, numbers[i].value);
    if (e->fan_out && n < room)
        n += (size_t)snprintf(to + n, room - n, "%sfan_out %s", n ? ", " : "", fan_out_words[e->fan_out]);
    if (n == 0) snprintf(to, room, "by rule");
}

static void show(const fy_tune_entry *e) {
    char values[256];
    tune_values(e, values, sizeof values);
    printf("%s, %s, %" PRId64 " worker%s, %" PRId64 " rank%s; H %" PRId64 ", I %" PRId64 ", S %" PRId64 ", E %" PRId64
           ", K %" PRId64 ", T %" PRId64 "; %s: %s (%.3f ms, by rule %.3f ms)\n",
           e->machine, e->backend == FERRY_CUDA ? "cuda" : "cpu", e->workers, e->workers == 1 ? "" : "s", e->ranks,
           e->ranks == 1 ? "" : "s", e->hidden, e->intermediate, e->shared, e->experts, e->slots, e->max_tokens,
           e->backward ? "fwd+bwd" : "forward", values, 1e-3 * (double)e->tuned_us, 1e-3 * (double)e->rule_us);
}

static json_t *entry_json(const fy_tune_entry *e) {
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "machine", e->machine,
                     "backend", e->backend == FERRY_CUDA ? "cuda" : "cpu", "workers", (json_int_t)e->workers, "ranks",
                     (json_int_t)e->ranks, "hidden", (json_int_t)e->hidden, "intermediate", (json_int_t)e->intermediate,
                     "shared", (json_int_t)e->shared, "experts", (json_int_t)e->experts, "slots", (json_int_t)e->slots,
                     "max_tokens", (json_int_t)e->max_tokens, "backward", (int)e->backward, "minibatch_rows",
                     (json_int_t)e->minibatch_rows, "pull_warps", (json_int_t)e->pull_warps, "fan_out",
                     (json_int_t)e->fan_out, "comm_sms", (json_int_t)e->comm_sms, "comm_workers",
                     (json_int_t)e->comm_workers, "rule_us", (json_int_t)e->rule_us, "tuned_us",
                     (json_int_t)e->tuned_us);
}

/* Blank lines and remarks are nobody's fault. */
static int is_remark(const char *line) {
    line += strspn(line, " \t\r\n");
    return *line == '\0' || *line == '#';
}

/* Whether the line is an entry, or one that has to be spoken of. */
static int list_line(const char *line, size_t length, int number, json_t *entries, json_t *others) {
    fy_tune_entry entry;
    int good = strlen(line) == length && fy_tune_parse(line, &entry);
    if (good && entries) json_array_append_new(entries, entry_json(&entry));
    if (good && !entries) show(&entry);
    if (good || (is_remark(line) && strlen(line) == length)) return good;
    if (others) json_array_append_new(others, json_integer(number));
    if (others) return 1;
    printf("line %d: no entry of this version; layers pass it over: ", number);
    for (size_t i = 0; i < length && i < 60 && line[i] != '\n'; i++)
        putchar(isprint((unsigned char)line[i]) ? line[i] : '?');
    putchar('\n');
    return 1;
}

int tune_file_list(const char *path, int named, int json) {
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    const char *fault = named || access(path, F_OK) == 0 ? fault_of(path) : NULL;
    if (fault) return cli_fail("%s: %s", path, fault);
    FILE *file = fy_tune_open(path);
    json_t *entries = json ? json_array() : NULL, *others = json ? json_array() : NULL;
    int said = 0;
    for (int number = 1; file && (length = getline(&line, &room, file)) > 0; number++)
        said |= list_line(line, (size_t)length, number, entries, others);
    free(line);
    if (file) fclose(file);
    if (!json && !said) printf("no entries: %s %s\n", path, file ? "has none" : "does not exist");
    if (!json) return CLI_OK;
    return cli_print_json(json_pack("{s:s,s:o,s:o}", "file", path, "entries", entries, "other_lines", others));
}
