/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing by table. The text of --help is in help.c. */
#include "cli/options.h"

#include "cli/message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cli_option *find_option(const cli_command *command, const char *name, size_t length) {
    for (const cli_option *option = command->options; option && option->name; option++) {
        if (strlen(option->name) == length && memcmp(option->name, name, length) == 0) return option;
    }
    return NULL;
}

static const cli_word *find_word(const cli_option *option, const char *text) {
    for (const cli_word *word = option->words; word && word->word; word++) {
        if (strcmp(word->word, text) == 0) return word;
    }
    return NULL;
}

/* "saved, recompute" for a message. */
static void list_words(const cli_option *option, char *to, size_t room) {
    to[0] = '\0';
    for (const cli_word *word = option->words; word && word->word; word++) {
        size_t used = strlen(to);
        snprintf(to + used, room - used, "%s%s", used ? ", " : "", word->word);
    }
}

static int store_word(const cli_option *option, const char *text, void *at) {
    const cli_word *word = find_word(option, text);
    if (word) {
        *(int64_t *)at = word->value;
        return CLI_OK;
    }
    char words[256];
    list_words(option, words, sizeof words);
    return cli_usage("--%s: '%s' is not one of: %s%s", option->name, text, words,
                     option->kind == CLI_INT ? ", or a number" : "");
}

static int store_int(const cli_option *option, const char *text, void *at) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end) {
        return option->words ? store_word(option, text, at)
                             : cli_usage("--%s: '%s' is not a whole number", option->name, text);
    }
    int any = option->min == 0 && option->max == 0;
    if (errno == ERANGE || (!any && (value < option->min || value > option->max))) {
        return cli_usage("--%s: %s is out of range; expected %lld to %lld", option->name, text,
                         any ? (long long)INT64_MIN : (long long)option->min,
                         any ? (long long)INT64_MAX : (long long)option->max);
    }
    *(int64_t *)at = value;
    return CLI_OK;
}

static int store_double(const cli_option *option, const char *text, void *at) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value)) return cli_usage("--%s: '%s' is not a number", option->name, text);
    int any = option->min == 0 && option->max == 0;
    if (!any && (value < (double)option->min || value > (double)option->max)) {
        return cli_usage("--%s: %s is out of range; expected %lld to %lld", option->name, text, (long long)option->min,
                         (long long)option->max);
    }
    *(double *)at = value;
    return CLI_OK;
}

static int store(const cli_option *option, const char *text, void *values) {
    void *at = (char *)values + option->at;
    switch (option->kind) {
    case CLI_FLAG:
        *(int64_t *)at = !option->clears;
        return CLI_OK;
    case CLI_INT:
        return store_int(option, text, at);
    case CLI_DOUBLE:
        return store_double(option, text, at);
    case CLI_CHOICE:
        return store_word(option, text, at);
    case CLI_STRING:
        *(const char **)at = text;
        return CLI_OK;
    }
    return CLI_FAILED;
}

/* Which options of groups were given so far. */
typedef struct given {
    const cli_option *option[16];
    int count;
} given;

static int check_group(given *seen, const cli_option *option) {
    if (!option->group) return CLI_OK;
    for (int i = 0; i < seen->count; i++) {
        if (seen->option[i] == option) return CLI_OK;
        if (strcmp(seen->option[i]->group, option->group) == 0) {
            return cli_usage("--%s and --%s exclude each other; give one of them", seen->option[i]->name, option->name);
        }
    }
    if (seen->count < (int)(sizeof seen->option / sizeof *seen->option)) seen->option[seen->count++] = option;
    return CLI_OK;
}

/* One option at argv[*index], which starts with "--" or "-"; moves *index past a value that it takes. */
static int parse_option(const cli_command *command, int argc, char **argv, int *index, given *seen, void *values) {
    const char *argument = argv[*index];
    const char *name = argument + 2;
    const char *equals = strchr(name, '=');
    const cli_option *option =
        argument[1] == '-' ? find_option(command, name, equals ? (size_t)(equals - name) : strlen(name)) : NULL;
    if (!option) return cli_usage("unknown option '%s'", argument);

    const char *text = equals ? equals + 1 : NULL;
    if (option->kind == CLI_FLAG) {
        if (text) return cli_usage("--%s takes no value", option->name);
    } else if (!text) {
        if (*index + 1 >= argc || strncmp(argv[*index + 1], "--", 2) == 0) {
            return cli_usage("--%s needs a value", option->name);
        }
        text = argv[++*index];
    }
    int code = check_group(seen, option);
    return code ? code : store(option, text, values);
}

int cli_parse(const cli_command *command, int argc, char **argv, void *values, const char **positionals,
              int *exit_code) {
    int wanted = 0, found = 0, options_ended = 0;
    given seen = {.count = 0};
    while (command->positionals && command->positionals[wanted].name) wanted++;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        *exit_code = CLI_OK;
        if (!options_ended && strcmp(argument, "--") == 0) {
            options_ended = 1;
        } else if (!options_ended && (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)) {
            cli_help(command, stdout);
            return 0;
        } else if (!options_ended && strcmp(argument, "--man") == 0) {
            cli_man(command, stdout);
            return 0;
        } else if (!options_ended && argument[0] == '-' && argument[1] != '\0') {
            *exit_code = parse_option(command, argc, argv, &i, &seen, values);
        } else if (found == wanted) {
            *exit_code = cli_usage("unexpected argument '%s'", argument);
        } else {
            positionals[found++] = argument;
        }
        if (*exit_code) return 0;
    }
    if (found < wanted) {
        *exit_code =
            cli_usage("missing argument %s (%s)", command->positionals[found].name, command->positionals[found].help);
        return 0;
    }
    return 1;
}
