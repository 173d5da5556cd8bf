/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry train` from the outside: exit codes and messages, checkpoint files, resuming, what is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "cli/routing.h"
#include "cli/train.h"
#include "lm/layout.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 32, TEXT_BYTES = 24000 };

static char folder[] = "/tmp/ferry-train-XXXXXX";
static char *said_out, *said_err;

/* The whole file with a 0 behind it. */
static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(1, *size + 1);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static int redirect(int descriptor, const char *path) {
    int kept = dup(descriptor), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && file >= 0);
    dup2(file, descriptor);
    close(file);
    return kept;
}

static void restore(int descriptor, int kept) {
    dup2(kept, descriptor);
    close(kept);
}

/* Arguments after "train", separated by blanks. What it printed is in said_out and said_err. */
static int train(const char *line) {
    static char words[1024];
    char *argv[MOST_ARGUMENTS] = {"train"};
    int argc = 1;
    size_t size;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    fflush(NULL);
    int out = redirect(STDOUT_FILENO, "stdout"), err = redirect(STDERR_FILENO, "stderr");
    int code = ferry_cmd_train(argc, argv);
    fflush(NULL);
    restore(STDOUT_FILENO, out);
    restore(STDERR_FILENO, err);
    free(said_out);
    free(said_err);
    said_out = read_file("stdout", &size);
    said_err = read_file("stderr", &size);
    return code;
}

/* The same with the small text. */
static int train_small(const char *line) {
    char all[1024];
    snprintf(all, sizeof all, "--data text %s", line);
    return train(all);
}

static void assert_same_files(const char *a, const char *b) {
    size_t size_a, size_b;
    char *bytes_a = read_file(a, &size_a), *bytes_b = read_file(b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(bytes_a, bytes_b, size_a);
    free(bytes_a);
    free(bytes_b);
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder) || chdir(folder)) return -1; /* names below are relative to it */
    static char text[TEXT_BYTES];
    static const char *const words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat.\n", "dog ", "ran "};
    uint32_t random = 1;
    for (size_t used = 0; used + 8 < TEXT_BYTES;) {
        random = random * 1664525u + 1013904223u;
        const char *word = words[random >> 29];
        memcpy(text + used, word, strlen(word));
        used += strlen(word);
    }
    write_file("text", text, TEXT_BYTES - 8);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    DIR *entries = opendir(".");
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (entry->d_name[0] != '.') remove(entry->d_name);
    }
    closedir(entries);
    free(said_out);
    free(said_err);
    return chdir("/") || rmdir(folder);
}

/* ---- Checkpoints ---- */

static void test_resume(void **state) {
    (void)state;
    assert_int_equal(train_small("--steps 2 --ranks 2 --save whole"), 0);
    assert_int_equal(train_small("--steps 1 --ranks 1 --save half"), 0);
    assert_int_equal(train_small("--steps 2 --ranks 4 --resume half --save end"), 0);
    assert_same_files("whole", "end");
    assert_int_equal(train_small("--steps 2 --ranks 8 --processes --save end"), 0);
    assert_same_files("whole", "end");
    assert_null(strstr(said_out, "another text"));
    assert_int_equal(train_small("--steps 2 --resume whole --save end"), 0); /* nothing left to do */
    assert_same_files("whole", "end");
    /* Nothing but the finished files stays behind. */
    int files = 0;
    DIR *entries = opendir(".");
    for (struct dirent *entry; (entry = readdir(entries));) files += entry->d_name[0] != '.';
    closedir(entries);
    assert_int_equal(files, 6); /* text, stdout, stderr, whole, half, end */
}

/* Not a number in the weights: the training ends with a message on all ranks, and writes nothing. */
static void test_diverged(void **state) {
    (void)state;
    size_t size, header = 0;
    char *bytes = read_file("half", &size);
    for (int i = 0; i < 8; i++) header |= (size_t)(unsigned char)bytes[i] << 8 * i;
    json_t *tensors = json_loadb(bytes + 8, header, 0, NULL);
    json_t *place = json_object_get(json_object_get(tensors, "final_norm"), "data_offsets");
    assert_non_null(place);
    size_t begin = (size_t)json_integer_value(json_array_get(place, 0));
    memset(bytes + 8 + header + begin, 0xff, (size_t)json_integer_value(json_array_get(place, 1)) - begin);
    json_decref(tensors);
    write_file("diverged", bytes, size);
    free(bytes);

    /* A step; and nothing left to do but the held-out loss. */
    const char *const lines[] = {"--resume diverged --steps 2 --ranks 2 --save diverged-on",
                                 "--resume diverged --steps 2 --ranks 2 --json --processes --save diverged-on",
                                 "--resume diverged --steps 1 --ranks 1 --json --save diverged-on"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(train_small(lines[i]), 1);
        assert_non_null(strstr(said_err, "the training has diverged"));
        assert_null(strstr(said_err, "memory"));
        assert_int_equal(access("diverged-on", F_OK), -1);
    }
}

static void test_bad_checkpoints(void **state) {
    (void)state;
    size_t size;
    char *bytes = read_file("half", &size);
    assert_int_equal(train_small("--resume nowhere"), 1);
    assert_non_null(strstr(said_err, "nowhere"));

    write_file("bad", bytes, size - 1000);
    assert_int_equal(train_small("--resume bad"), 1);
    assert_non_null(strstr(said_err, "bad"));
    write_file("bad", "hello", 5);
    assert_int_equal(train_small("--resume bad"), 1);

    size_t header =
        (unsigned char)bytes[0] + 256 * (size_t)(unsigned char)bytes[1] + 65536 * (size_t)(unsigned char)bytes[2];
    char *place = memmem(bytes, header, "\"hidden\":\"128\"", 14);
    assert_non_null(place);
    place[12] = '9';
    write_file("bad", bytes, size);
    place[12] = '8';
    assert_int_equal(train_small("--resume bad"), 1);
    assert_non_null(strstr(said_err, "another configuration: hidden is 129, expected 128"));

    place = memmem(bytes, header, "blocks.1.router", 15);
    assert_non_null(place);
    place[0] = 'B';
    write_file("bad", bytes, size);
    assert_int_equal(train_small("--resume bad"), 1);
    assert_non_null(strstr(said_err, "blocks.1.router"));

    assert_int_equal(train_small("--steps 1 --resume whole"), 1);
    assert_non_null(strstr(said_err, "has done 2 steps"));
    assert_int_equal(train_small("--steps 2 --seed 9 --resume half"), 1);
    assert_int_equal(train_small("--steps 2 --decay-steps 9 --resume half"), 1);
    assert_int_equal(train_small("--steps 2 --seed 1 --decay-steps 600 --resume half"), 0);
    free(bytes);
    remove("bad");
}

/* ---- Recorded routing ---- */

static void test_record_routing(void **state) {
    (void)state;
    const lm_config config = lm_config_default();
    routing r;
    assert_int_equal(train_small("--steps 2 --ranks 1 --record-routing one"), 0);
    assert_int_equal(train_small("--steps 2 --ranks 4 --record-routing four"), 0);
    assert_same_files("one", "four");
    assert_int_equal(train_small("--steps 2 --ranks 8 --processes --record-routing four"), 0);
    assert_same_files("one", "four");
    assert_int_equal(train_small("--steps 1 --record-routing four"), 0); /* another step's */

    assert_int_equal(routing_read(&r, "one", config.experts), 0);
    assert_int_equal(r.tokens, config.sequences * config.length);
    assert_int_equal(r.slots, config.slots);
    int64_t first_choices[64] = {0}, chosen = 0;
    for (int64_t t = 0; t < r.tokens; t++) {
        const int32_t *ids = r.ids + t * r.slots;
        const float *weights = r.weights + t * r.slots;
        double sum = 0;
        for (int64_t k = 0; k < r.slots; k++) sum += (double)weights[k];
        assert_true(ids[0] >= 0 && ids[0] != ids[1] && weights[0] >= weights[1] && weights[1] > 0);
        assert_true(sum > 0.9999 && sum < 1.0001);
        chosen += first_choices[ids[0]]++ == 0;
    }
    assert_true(chosen > 1);
    routing other;
    assert_int_equal(routing_read(&other, "four", config.experts), 0);
    assert_memory_not_equal(r.weights, other.weights, (size_t)(r.tokens * r.slots) * sizeof *r.weights);
    routing_free(&r);
    routing_free(&other);

    assert_int_equal(train_small("--steps 1 --record-routing no/such"), 1);
    assert_int_equal(train_small("--steps 1 --record-routing /tmp"), 1);
    assert_non_null(strstr(said_err, "/tmp is there and is no regular file"));
    assert_string_equal(said_out, ""); /* before the training */
    assert_int_equal(train_small("--steps 1 --record-routing whole"), 1);
    assert_non_null(strstr(said_err, "whole is there and is no routing file"));
    assert_int_equal(train_small("--steps 1 --record-routing ./text"), 2);
    assert_int_equal(train_small("--steps 2 --resume whole --record-routing one"), 2);
    assert_non_null(strstr(said_err, "there is no step to record"));
}

/* ---- Command lines and files ---- */

static void test_errors(void **state) {
    (void)state;
    assert_int_equal(train_small("--ranks 3"), 2);
    assert_int_equal(train_small("--ranks 16"), 2);
    assert_int_equal(train_small("--nodes 3"), 2);
    assert_non_null(strstr(said_err, "--nodes: 3, expected 1, 2, 4 or 8"));
    assert_int_equal(train_small("--nodes 8 --steps 1"), 0); /* of a rank each */
    assert_int_equal(train_small("--steps 0"), 2);
    assert_int_equal(train_small("--threads --processes"), 2);
    assert_int_equal(train_small("--temperature 0"), 2);
    assert_int_equal(train_small("--nonsense"), 2);
    assert_int_equal(train_small("--help"), 0);
    assert_int_equal(train("--data /nonexistent/text"), 1);
    assert_non_null(strstr(said_err, "/nonexistent/text"));
    assert_int_equal(train("--data /tmp"), 1);
    assert_non_null(strstr(said_err, "/tmp"));
    assert_int_equal(train_small("--save no/such"), 1);
    write_file("short", "too short", 9);
    assert_int_equal(train("--data short"), 1);
    assert_non_null(strstr(said_err, "too short"));
    remove("short");
}

/* What --save must not replace is refused before the training starts. */
static void test_save_place(void **state) {
    (void)state;
    static const struct {
        const char *place;
        int code;
        const char *why;
    } cases[] = {{"/tmp", 1, "/tmp is there and is no regular file"},
                 {"/dev/full", 1, "/dev/full is there and is no regular file"},
                 {"notes", 1, "notes is there and is no checkpoint"},
                 {"one", 1, "one is there and is no checkpoint"}, /* a routing file */
                 {"./text", 2, "--save: ./text is the text to learn"},
                 {"new --record-routing new", 2, "are both new"}};
    size_t size;
    write_file("notes", "of somebody\n", 12);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "--steps 1 --save %s", cases[i].place);
        assert_int_equal(train_small(line), cases[i].code);
        assert_non_null(strstr(said_err, cases[i].why));
        assert_string_equal(said_out, "");
    }
    static const char *const options[] = {"--save", "--record-routing"};
    for (int i = 0; i < 2; i++) {
        char line[64];
        snprintf(line, sizeof line, "--steps 1 %s=", options[i]);
        assert_int_equal(train_small(line), 2);
        snprintf(line, sizeof line, "%s: the name of the file is empty", options[i]);
        assert_non_null(strstr(said_err, line));
        assert_string_equal(said_out, "");
    }
    char *notes = read_file("notes", &size);
    assert_string_equal(notes, "of somebody\n");
    free(notes);
    write_file("notes", "", 0);
    assert_int_equal(train_small("--steps 1 --save notes"), 0);
    remove("notes");
}

static double number(json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void test_json(void **state) {
    (void)state;
    assert_int_equal(train_small("--steps 1 --json --sample 20"), 0);
    assert_string_equal(said_err, "");
    int lines = 0;
    double loss = 0;
    char *text = said_out;
    for (char *end; (end = strchr(text, '\n')); text = end + 1, lines++) {
        *end = 0;
        json_t *object = json_loads(text, 0, NULL);
        assert_non_null(object);
        const char *event = json_string_value(json_object_get(object, "event"));
        static const char *const wanted[] = {"start", "progress", "end", "sample"};
        assert_true(lines < 4);
        assert_string_equal(event, wanted[lines]);
        if (lines == 1) loss = number(object, "held_out_loss");
        if (lines == 2) {
            assert_true(number(object, "held_out_loss") == loss); /* the small text has no more windows */
            assert_true(number(object, "bigram_entropy") > 0);
            assert_true(json_is_false(json_object_get(object, "reached")));
        }
        json_decref(object);
    }
    assert_int_equal(lines, 4);
    assert_string_equal(text, "");
}

static void test_lines(void **state) {
    (void)state;
    assert_int_equal(train_small("--steps 1 --sample 20 --ranks 1"), 0);
    assert_non_null(strstr(said_out, "held-out loss"));
    assert_null(strstr(said_out, "reached")); /* nobody expects that of a step */
    assert_null(strstr(said_out, "wrote"));
    assert_non_null(strstr(said_out, "  held-out sample "));
    assert_non_null(strstr(said_out, "held-out loss (all "));
    assert_non_null(strstr(said_out, "expert load"));
    assert_null(strchr(said_out, '\r'));
    assert_string_equal(said_err, ""); /* no bar without a terminal */
    assert_int_equal(train_small("--steps 1 --save end --record-routing one"), 0);
    assert_non_null(strstr(said_out, "wrote end\n"));
    assert_non_null(strstr(said_out, "wrote one\n"));
    assert_int_equal(train_small("--steps 1 --json --save end --record-routing one"), 0);
    assert_null(strstr(said_out, "wrote"));
}

/* Text, then what is no UTF-8 or no text: continuations alone, overlong and cut characters, a surrogate, controls. */
#define SAMPLE                                                                                                         \
    "a\tb ~\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\xa2 \x1b[2J\r\a\x7f \x80\xbf \xc0\xaf \xed\xa0\x80 \xc2\x9b \xff "     \
    "\xc3z \xe2\x82"
#define SHOWN "a\tb ~\r\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\xa2 ?[2J??? ?? ?? ??? ?? ? ?z ??\r\n"

/* A sample has its own bytes in a file, and on a terminal nothing that is a command to it. */
static void test_sample_on_a_terminal(void **state) {
    (void)state;
    const train_job job = {.options = {.json = 0}};
    char got[256] = "";
    size_t used = 0, size;
    int kept = redirect(STDOUT_FILENO, "stdout");
    train_print_sample(&job, (const unsigned char *)SAMPLE, sizeof SAMPLE - 1);
    restore(STDOUT_FILENO, kept);
    char *file = read_file("stdout", &size);
    assert_string_equal(file, SAMPLE "\n");
    free(file);

    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) skip(); /* a container without terminals */
    assert_true(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    fflush(NULL);
    kept = redirect(STDOUT_FILENO, ptsname(terminal));
    train_print_sample(&job, (const unsigned char *)SAMPLE, sizeof SAMPLE - 1);
    while (used < sizeof SHOWN - 1) {
        ssize_t count = read(terminal, got + used, sizeof got - 1 - used);
        if (count <= 0) break;
        used += (size_t)count;
    }
    restore(STDOUT_FILENO, kept);
    close(terminal);
    assert_string_equal(got, SHOWN);
}

/* A training that has the default number of steps says whether it has learned enough. "late" is "half", except that it
 * says that it has done them, so that nothing is left to do but the held-out loss. */
static void test_verdict(void **state) {
    (void)state;
    size_t size, header = 0;
    char *bytes = read_file("half", &size), *late = malloc(size + 8);
    for (int i = 0; i < 8; i++) header |= (size_t)(unsigned char)bytes[i] << 8 * i;
    char *step = memmem(bytes + 8, header, "\"step\":\"1\"", 10);
    assert_non_null(step);
    size_t before = (size_t)(step + 8 - bytes), rest = 8 + header - before - 1;
    memcpy(late, bytes, before);
    memcpy(late + before, "600", 3);
    memcpy(late + before + 3, step + 9, rest);
    memset(late + before + 3 + rest, ' ', 6);
    memcpy(late + 16 + header, bytes + 8 + header, size - 8 - header);
    header += 8;
    for (int i = 0; i < 8; i++) late[i] = (char)(header >> 8 * i);
    write_file("late", late, size + 8);
    free(late);
    free(bytes);
    assert_int_equal(train_small("--resume late --ranks 1"), 0);
    assert_non_null(strstr(said_out, "at least 0.25 below it: not reached"));
    remove("late");
}

/* Going on on another text is said. */
static void test_other_text(void **state) {
    (void)state;
    size_t size;
    char *bytes = read_file("text", &size);
    bytes[size / 2] ^= 1;
    write_file("other", bytes, size);
    free(bytes);
    assert_int_equal(train("--data other --steps 2 --ranks 1 --resume half"), 0);
    assert_non_null(strstr(said_out, "half was trained on another text"));
    assert_int_equal(train_small("--steps 2 --ranks 1 --resume half"), 0);
    assert_null(strstr(said_out, "another text"));
    remove("other");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_bad_checkpoints),
        cmocka_unit_test(test_record_routing),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_save_place),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_other_text),
        cmocka_unit_test(test_sample_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
