/* SPDX-License-Identifier: Apache-2.0 */
/* An entry as a line: a word that names the form, then name=value of every field of one table, in its order. */
#include "core/tune.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char family[] = "ferry-tune-", form[] = "ferry-tune-1", machine_field[] = "machine=";

#define FIELD(name, least, most, key)                                                                                  \
    { #name, offsetof(fy_tune_entry, name), least, most, key }
#define MANY (INT64_C(1) << 40)
static const struct field {
    const char *name;
    size_t at;
    int64_t least, most;
    int key;
} fields[] = {FIELD(backend, 0, 1, 1),    FIELD(workers, 1, 1 << 20, 1),     FIELD(ranks, 1, FY_MAX_RANKS, 1),
              FIELD(hidden, 1, MANY, 1),  FIELD(intermediate, 1, MANY, 1),   FIELD(shared, 0, MANY, 1),
              FIELD(experts, 1, MANY, 1), FIELD(slots, 1, MANY, 1),          FIELD(max_tokens, 0, MANY, 1),
              FIELD(backward, 0, 1, 1),   FIELD(minibatch_rows, 0, MANY, 0), FIELD(pull_warps, 0, 3, 0),
              FIELD(fan_out, 0, 2, 0),    FIELD(comm_sms, 0, 1 << 20, 0),    FIELD(comm_workers, 0, 1 << 20, 0),
              FIELD(rule_us, 0, MANY, 0), FIELD(tuned_us, 0, MANY, 0)};
enum { FIELDS = sizeof fields / sizeof *fields };

static int64_t *at(fy_tune_entry *entry, int i) { return (int64_t *)((char *)entry + fields[i].at); }
static int64_t get(const fy_tune_entry *entry, int i) { return *(const int64_t *)((const char *)entry + fields[i].at); }

static int is_name_character(char c) { return isalnum((unsigned char)c) || strchr("._+-", c) != NULL; }

void fy_tune_machine(const char *name, char to[FY_TUNE_NAME]) {
    size_t n = 0;
    for (; name[n] && n < FY_TUNE_NAME - 1; n++) to[n] = is_name_character(name[n]) ? name[n] : '-';
    to[n] = '\0';
    if (n == 0) strcpy(to, "unknown");
}

/* Moves *rest behind `text` if that comes next. */
static int takes(const char **rest, const char *text) {
    size_t length = strlen(text);
    if (strncmp(*rest, text, length) != 0) return 0;
    *rest += length;
    return 1;
}

static int takes_machine(const char **rest, char to[FY_TUNE_NAME]) {
    size_t n = 0;
    if (!takes(rest, machine_field)) return 0;
    while ((*rest)[n] && is_name_character((*rest)[n])) n++;
    if (n == 0 || n >= FY_TUNE_NAME) return 0;
    memcpy(to, *rest, n);
    to[n] = '\0';
    *rest += n;
    return 1;
}

static int takes_field(const char **rest, const struct field *f, int64_t *value) {
    char *end;
    if (!takes(rest, " ") || !takes(rest, f->name) || !takes(rest, "=") || !isdigit((unsigned char)**rest)) return 0;
    *value = strtoll(*rest, &end, 10);
    *rest = end;
    return *value >= f->least && *value <= f->most;
}

int fy_tune_parse(const char *line, fy_tune_entry *entry) {
    fy_tune_entry e;
    memset(&e, 0, sizeof e);
    if (strlen(line) >= FY_TUNE_LINE || !takes(&line, form) || !takes(&line, " ") || !takes_machine(&line, e.machine))
        return 0;
    for (int i = 0; i < FIELDS; i++)
        if (!takes_field(&line, &fields[i], at(&e, i))) return 0;
    takes(&line, "\n");
    if (*line) return 0;
    *entry = e;
    return 1;
}

int fy_tune_form(const char *line) { return takes(&line, family); }

void fy_tune_print(const fy_tune_entry *entry, char line[FY_TUNE_LINE]) {
    size_t room = FY_TUNE_LINE, n = (size_t)snprintf(line, room, "%s %s%s", form, machine_field, entry->machine);
    for (int i = 0; i < FIELDS; i++)
        n += (size_t)snprintf(line + n, room - n, " %s=%" PRId64, fields[i].name, get(entry, i));
    snprintf(line + n, room - n, "\n");
}

int fy_tune_same_key(const fy_tune_entry *a, const fy_tune_entry *b) {
    if (strcmp(a->machine, b->machine) != 0) return 0;
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].key && get(a, i) != get(b, i)) return 0;
    return 1;
}
