/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes of one machine, found through environment variables (read here and nowhere else in the library).
 * An all-gather goes through rank 0: every rank sends its part, rank 0 answers with all of them or with what failed.
 */
#include "comm/bootstrap.h"

#include "comm/clock.h"
#include "comm/comm.h"
#include "comm/message.h"
#include "comm/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ferry_env_bootstrap {
    int rank, nranks;
    double timeout_s;
    uint64_t nonce, round;
    ferry_status broken; /* an all-gather failed: so does every later one, with `why` */
    char why[FY_MESSAGE_TEXT];
    int *sockets;          /* [nranks] as the rendezvous left them */
    struct pollfd *polled; /* [nranks] rank 0: whose part is awaited */
};

/* ---- Variables ---- */

static ferry_status read_number(const char *name, long low, long high, int *out) {
    const char *text = getenv(name);
    if (!text)
        return fy_fail(FERRY_E_INVALID, "%s is not set, expected an integer %ld..%ld (torchrun sets it)", name, low,
                       high);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || value < low || value > high)
        return fy_fail(FERRY_E_INVALID, "%s is '%.64s', expected an integer %ld..%ld", name, text, low, high);
    *out = (int)value;
    return FERRY_OK;
}

/* What all ranks of the job, and nobody else, call it. */
static ferry_status read_job(char *job, size_t bytes) {
    const char *name = getenv("FERRY_JOB"), *host = getenv("MASTER_ADDR");
    int port;
    if (name && *name == 0) return fy_fail(FERRY_E_INVALID, "FERRY_JOB is '', expected the name of the job");
    if (!name && (!host || *host == 0))
        return fy_fail(FERRY_E_INVALID, "MASTER_ADDR is %s, expected a host's name (or set FERRY_JOB)",
                       host ? "''" : "not set");
    if (!name) FY_TRY(read_number("MASTER_PORT", 0, 65535, &port));
    int length = name ? snprintf(job, bytes, "%s", name) : snprintf(job, bytes, "%s:%d", host, port);
    if ((size_t)length >= bytes)
        return fy_fail(FERRY_E_INVALID, "%s is %d bytes long, expected less than %zu",
                       name ? "FERRY_JOB" : "MASTER_ADDR", length, bytes);
    return FERRY_OK;
}

/* ---- All-gather ---- */

static ferry_status break_env(ferry_env_bootstrap *env, ferry_status status, const char *why) {
    env->broken = status;
    snprintf(env->why, sizeof env->why, "%s", why);
    return fy_fail(status, "%s", why);
}

static fy_message message_of(const ferry_env_bootstrap *env, size_t bytes) {
    return (fy_message){.magic = FY_MESSAGE_MAGIC,
                        .nonce = env->nonce,
                        .round = env->round,
                        .bytes = bytes,
                        .rank = env->rank,
                        .nranks = env->nranks};
}

static void lost(const ferry_env_bootstrap *env, int rank, char why[FY_MESSAGE_TEXT]) {
    snprintf(why, FY_MESSAGE_TEXT, "processes as ranks: rank %d %s in all-gather %llu (seen by rank %d)", rank,
             errno == ETIMEDOUT ? "was silent until the deadline" : "ended or gave up", (unsigned long long)env->round,
             env->rank);
}

/* Rank 0: one rank's part, if it is the one that is due. */
static ferry_status take_part(ferry_env_bootstrap *env, int rank, unsigned char *all, size_t bytes, int64_t deadline,
                              char why[FY_MESSAGE_TEXT]) {
    fy_message part;
    int error = fy_socket_receive(env->sockets[rank], &part, sizeof part, deadline);
    if (error == 0 &&
        (part.magic != FY_MESSAGE_MAGIC || part.nonce != env->nonce || part.round != env->round || part.rank != rank)) {
        snprintf(why, FY_MESSAGE_TEXT, "processes as ranks: rank %d sent what is not a part of all-gather %llu", rank,
                 (unsigned long long)env->round);
        return FERRY_E_MISMATCH;
    }
    if (error == 0 && part.bytes != bytes) {
        snprintf(why, FY_MESSAGE_TEXT,
                 "processes as ranks: rank 0 gathers %zu bytes while rank %d gathers %llu; all ranks must make the "
                 "same collective calls",
                 bytes, rank, (unsigned long long)part.bytes);
        return FERRY_E_MISMATCH;
    }
    if (error == 0) error = fy_socket_receive(env->sockets[rank], all + (size_t)rank * bytes, bytes, deadline);
    if (error == 0) return FERRY_OK;
    ferry_status status = errno == ETIMEDOUT ? FERRY_E_TIMEOUT : FERRY_E_PEER;
    lost(env, rank, why);
    return status;
}

/* Rank 0: parts in the order in which they come, so that a rank that ended is seen while others are awaited. */
static ferry_status take_parts(ferry_env_bootstrap *env, unsigned char *all, size_t bytes, int64_t deadline,
                               char why[FY_MESSAGE_TEXT]) {
    for (int r = 0; r < env->nranks; r++) env->polled[r] = (struct pollfd){.fd = env->sockets[r], .events = POLLIN};
    for (int pending = env->nranks - 1; pending > 0;) {
        int ready = poll(env->polled, (nfds_t)env->nranks, fy_poll_ms(deadline));
        int late = ready <= 0 && fy_now_ns() >= deadline;
        for (int r = 1; r < env->nranks; r++) {
            struct pollfd *from = &env->polled[r];
            if (from->fd < 0 || (!late && (ready <= 0 || from->revents == 0))) continue;
            ferry_status status = take_part(env, r, all, bytes, deadline, why);
            if (status != FERRY_OK) return status;
            from->fd = -1;
            pending--;
        }
    }
    return FERRY_OK;
}

static ferry_status gather_as_hub(ferry_env_bootstrap *env, unsigned char *all, size_t bytes, int64_t deadline) {
    fy_message answer = message_of(env, bytes);
    ferry_status status = take_parts(env, all, bytes, deadline, answer.text);
    answer.status = status;
    for (int r = 1; r < env->nranks; r++) {
        int error = fy_socket_send(env->sockets[r], &answer, sizeof answer, deadline);
        if (error == 0 && answer.status == FERRY_OK)
            error = fy_socket_send(env->sockets[r], all, bytes * (size_t)env->nranks, deadline);
        if (error == 0 || status != FERRY_OK) continue;
        status = FERRY_E_PEER;
        lost(env, r, answer.text);
    }
    return status == FERRY_OK ? FERRY_OK : break_env(env, status, answer.text);
}

static ferry_status gather_as_member(ferry_env_bootstrap *env, const void *mine, unsigned char *all, size_t bytes,
                                     int64_t deadline) {
    fy_message part = message_of(env, bytes), answer;
    int hub = env->sockets[0];
    /* Rank 0 may have refused already and gone: its answer is there to be read all the same. */
    if (fy_socket_send(hub, &part, sizeof part, deadline) == 0) fy_socket_send(hub, mine, bytes, deadline);
    int error = fy_socket_receive(hub, &answer, sizeof answer, deadline);
    if (error == 0 && answer.status != FERRY_OK) {
        answer.text[sizeof answer.text - 1] = 0;
        return break_env(env, (ferry_status)answer.status, answer.text);
    }
    if (error == 0) error = fy_socket_receive(hub, all, bytes * (size_t)env->nranks, deadline);
    if (error == 0) return FERRY_OK;
    ferry_status status = errno == ETIMEDOUT ? FERRY_E_TIMEOUT : FERRY_E_PEER;
    lost(env, 0, answer.text);
    return break_env(env, status, answer.text);
}

int fy_env_allgather(void *user, const void *mine, void *all, size_t bytes) {
    ferry_env_bootstrap *env = user;
    if (env->broken != FERRY_OK) return fy_fail(env->broken, "%s", env->why);
    int64_t deadline = fy_deadline_ns(env->timeout_s);
    if (bytes > 0) memmove((unsigned char *)all + (size_t)env->rank * bytes, mine, bytes);
    ferry_status status = FERRY_OK;
    if (env->nranks > 1)
        status = env->rank == 0 ? gather_as_hub(env, all, bytes, deadline)
                                : gather_as_member(env, mine, all, bytes, deadline + FY_VERDICT_NS);
    env->round++;
    return status;
}

/* ---- Life ---- */

ferry_status ferry_env_bootstrap_create(double timeout_s, ferry_env_bootstrap **env, ferry_bootstrap *bootstrap) {
    char job[512] = "";
    int rank, nranks;
    if (!env || !bootstrap)
        return fy_fail(FERRY_E_INVALID, "ferry_env_bootstrap_create: %s is NULL", env ? "bootstrap" : "env");
    FY_TRY(read_number("WORLD_SIZE", 1, FY_MAX_RANKS, &nranks));
    FY_TRY(read_number("RANK", 0, nranks - 1, &rank));
    if (nranks > 1) FY_TRY(read_job(job, sizeof job));

    ferry_env_bootstrap *made =
        calloc(1, sizeof *made + (size_t)nranks * (sizeof *made->polled + sizeof *made->sockets));
    if (!made) return fy_fail(FERRY_E_MEMORY, "ferry_env_bootstrap_create: no memory for %d ranks", nranks);
    made->rank = rank;
    made->nranks = nranks;
    made->timeout_s = timeout_s > 0 ? timeout_s : 600;
    made->polled = (struct pollfd *)(made + 1);
    made->sockets = (int *)(made->polled + nranks);
    fy_rendezvous meeting = {
        .rank = rank, .nranks = nranks, .timeout_s = made->timeout_s, .job = job, .sockets = made->sockets};
    for (int r = 0; r < nranks; r++) made->sockets[r] = -1;
    ferry_status status = nranks > 1 ? fy_rendezvous_meet(&meeting) : FERRY_OK;
    if (status != FERRY_OK) {
        ferry_env_bootstrap_destroy(made);
        return status;
    }
    made->nonce = meeting.nonce;
    *env = made;
    *bootstrap = (ferry_bootstrap){
        .rank = rank, .nranks = nranks, .allgather = fy_env_allgather, .user = made, .same_process = 0};
    return FERRY_OK;
}

void ferry_env_bootstrap_destroy(ferry_env_bootstrap *env) {
    if (!env) return;
    for (int r = 0; r < env->nranks; r++)
        if (env->sockets[r] >= 0) close(env->sockets[r]);
    free(env);
}
