/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variables that a process finds its peers by. The rendezvous is wrapped at link time: it checks what the
 * variables were made into, and meets nobody.
 */
#include "tests/fuzz/input.h"

#include "comm/comm.h"
#include "comm/rendezvous.h"

#include <string.h>

static const char *const names[] = {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "FERRY_JOB"};
enum { NAMES = sizeof names / sizeof *names };

ferry_status __wrap_fy_rendezvous_meet(fy_rendezvous *meeting);

static int meetings;

ferry_status __wrap_fy_rendezvous_meet(fy_rendezvous *meeting) {
    size_t length = strlen(meeting->job);
    FUZZ_CHECK(meeting->nranks >= 2 && meeting->nranks <= FY_MAX_RANKS, "%d ranks", meeting->nranks);
    FUZZ_CHECK(meeting->rank >= 0 && meeting->rank < meeting->nranks, "rank %d", meeting->rank);
    FUZZ_CHECK(length > 0 && length < 512, "a job's name of %zu bytes", length);
    FUZZ_CHECK(meeting->timeout_s > 0, "a deadline of %g s", meeting->timeout_s);
    for (int r = 0; r < meeting->nranks; r++) FUZZ_CHECK(meeting->sockets[r] == -1, "socket %d", meeting->sockets[r]);
    meetings++;
    return FERRY_OK;
}

/* Unset, a small number as often as anything else, or any text. */
static void set_variable(fuzz_input *in, const char *name) {
    uint8_t form = fuzz_byte(in);
    unsetenv(name);
    if (form < 32) return;
    char number[16];
    snprintf(number, sizeof number, "%d", form % 12 - 2);
    char *text = form < 128 ? NULL : fuzz_text(in);
    if (setenv(name, text ? text : number, 1) != 0) exit(2);
    free(text);
}

/* The whole text is a number from low to high. */
static int is_number(const char *text, long low, long high) {
    char *end;
    if (!text || !*text) return 0;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value >= low && value <= high;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = fuzz_input_of(data, size);
    double timeout = (double)fuzz_choice(&in, -2, 9);
    for (int i = 0; i < NAMES; i++) set_variable(&in, names[i]);
    ferry_env_bootstrap *env = NULL;
    ferry_bootstrap bootstrap = {.rank = -7};
    meetings = 0;
    ferry_status status = ferry_env_bootstrap_create(timeout, &env, &bootstrap);
    if (status != FERRY_OK) {
        FUZZ_CHECK(status == FERRY_E_INVALID && env == NULL && bootstrap.rank == -7 && meetings == 0, "status %d",
                   status);
        FUZZ_CHECK(strlen(ferry_last_error()) > 10, "the sentence is '%s'", ferry_last_error());
        return 0;
    }
    const char *ranks = getenv("WORLD_SIZE");
    FUZZ_CHECK(is_number(ranks, 1, FY_MAX_RANKS), "WORLD_SIZE '%s' was taken", ranks);
    FUZZ_CHECK(is_number(getenv("RANK"), 0, atol(ranks) - 1), "RANK '%s' was taken", getenv("RANK"));
    FUZZ_CHECK(bootstrap.nranks == atol(ranks) && bootstrap.rank == atol(getenv("RANK")), "other numbers");
    FUZZ_CHECK(meetings == (bootstrap.nranks > 1), "%d meetings of %d ranks", meetings, bootstrap.nranks);
    FUZZ_CHECK(meetings == 0 || getenv("FERRY_JOB") || is_number(getenv("MASTER_PORT"), 0, 65535), "the port");
    ferry_env_bootstrap_destroy(env);
    return 0;
}
