/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous. The name of the socket is made of the user and the job; the kernel frees it when its process ends,
 * so nothing stays behind. A name that is still held (by the last start's rank 0, on its way out) and a hub that goes
 * away before it answered (likewise) are tried again until the deadline. Once rank 0 has met all others it gives the
 * name free: the sockets are this start's alone, and its nonce is in every message.
 */
#include "comm/rendezvous.h"

#include "comm/clock.h"
#include "comm/message.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    RETRY_NS = 5000000,
    HELLO_S = 2,     /* for a peer that has connected to introduce itself */
    CHALLENGE_S = 2, /* a name held for longer than this may be that of another rank 0 of this start */
    LINGER_S = 2     /* after a refusal: for the ranks that are still to come */
};

typedef struct address {
    struct sockaddr_un name;
    socklen_t bytes;
} address;

static address address_of(const char *job) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a: a job may be longer than a socket's name */
    for (const char *c = job; *c; c++) hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    address made = {.name.sun_family = AF_UNIX};
    int length = snprintf(made.name.sun_path + 1, sizeof made.name.sun_path - 1, "ferry-%u-%016llx",
                          (unsigned)geteuid(), (unsigned long long)hash);
    made.bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return made;
}

static int new_socket(void) { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

/* Another user may have taken the name; only our own processes are talked to. */
static int same_user(int fd) {
    struct ucred other;
    socklen_t bytes = sizeof other;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == geteuid();
}

static void close_socket(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static fy_message message_of(const fy_rendezvous *meeting) {
    return (fy_message){
        .magic = FY_MESSAGE_MAGIC, .nonce = meeting->nonce, .rank = meeting->rank, .nranks = meeting->nranks};
}

/* ---- A rank that joins ---- */

typedef enum outcome { JOINED, REFUSED, NOBODY } outcome;

/* One try. NOBODY: nobody of this start answered, try again. REFUSED: `answer` says why. */
static outcome try_to_join(fy_rendezvous *meeting, int64_t deadline, int *fd, fy_message *answer) {
    address hub = address_of(meeting->job);
    fy_message hello = message_of(meeting);
    *fd = new_socket();
    if (*fd < 0) {
        answer->status = FERRY_E_SYSTEM;
        snprintf(answer->text, sizeof answer->text, "job %s: rank %d cannot make a socket: %s", meeting->job,
                 meeting->rank, strerror(errno));
        return REFUSED;
    }
    if (connect(*fd, (struct sockaddr *)&hub.name, hub.bytes) == 0 && same_user(*fd) &&
        fy_socket_send(*fd, &hello, sizeof hello, deadline) == 0 &&
        fy_socket_receive(*fd, answer, sizeof *answer, deadline + FY_VERDICT_NS) == 0 &&
        answer->magic == FY_MESSAGE_MAGIC) {
        if (answer->status == FERRY_OK) return JOINED;
        answer->text[sizeof answer->text - 1] = 0;
        close_socket(fd);
        return REFUSED;
    }
    close_socket(fd);
    return NOBODY;
}

static ferry_status join(fy_rendezvous *meeting, int64_t deadline) {
    for (;;) {
        fy_message answer;
        switch (try_to_join(meeting, deadline, &meeting->sockets[0], &answer)) {
        case JOINED:
            meeting->nonce = answer.nonce;
            return FERRY_OK;
        case REFUSED:
            return fy_fail((ferry_status)answer.status, "%s", answer.text);
        case NOBODY:
            break;
        }
        if (fy_now_ns() >= deadline)
            return fy_fail(FERRY_E_TIMEOUT,
                           "job %s: rank %d waited %g s for rank 0 of %d; do all ranks run on this machine, as this "
                           "user, with the same job name?",
                           meeting->job, meeting->rank, meeting->timeout_s, meeting->nranks);
        fy_sleep_ns(RETRY_NS);
    }
}

/* ---- Rank 0 ---- */

/* Tells everybody who is here, and for a while everybody who still comes, that this start is over. */
static ferry_status refuse(fy_rendezvous *meeting, int listener, int newcomer, ferry_status status,
                           const char *sentence) {
    fy_message no = message_of(meeting);
    int64_t deadline = fy_deadline_ns(status == FERRY_E_TIMEOUT ? 0.1 : LINGER_S); /* late is late */
    int untold = meeting->nranks - 1;
    no.status = status;
    snprintf(no.text, sizeof no.text, "%s", sentence);
    if (newcomer >= 0) {
        fy_socket_send(newcomer, &no, sizeof no, deadline);
        close(newcomer);
    }
    for (int r = 1; r < meeting->nranks; r++) {
        if (meeting->sockets[r] < 0) continue;
        fy_socket_send(meeting->sockets[r], &no, sizeof no, deadline);
        close_socket(&meeting->sockets[r]); /* descriptors may be what is short */
        untold--;
    }
    while (untold > 0 && fy_now_ns() < deadline) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (poll(&ready, 1, fy_poll_ms(deadline)) <= 0) continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) continue;
        fy_message hello; /* read, or closing would throw the answer away */
        if (same_user(fd) && fy_socket_receive(fd, &hello, sizeof hello, deadline) == 0 &&
            fy_socket_send(fd, &no, sizeof no, deadline) == 0)
            untold--;
        close(fd);
    }
    return fy_fail(status, "%s", sentence);
}

/* Whether the process at the other end has gone. A rank that waits for its welcome sends nothing. */
static int has_gone(int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) > 0;
}

/* Gives one newcomer its place. FERRY_OK also when it was none of ours or went away again. */
static ferry_status admit(fy_rendezvous *meeting, int listener) {
    char why[FY_MESSAGE_TEXT];
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return FERRY_OK;
        snprintf(why, sizeof why, "job %s: rank 0 cannot accept the connection of a rank: %s", meeting->job,
                 strerror(errno));
        return refuse(meeting, listener, -1, FERRY_E_SYSTEM, why);
    }
    fy_message hello;
    if (!same_user(fd) || fy_socket_receive(fd, &hello, sizeof hello, fy_deadline_ns(HELLO_S)) != 0) {
        close(fd);
        return FERRY_OK;
    }
    if (hello.magic != FY_MESSAGE_MAGIC) {
        snprintf(why, sizeof why, "job %s: a rank speaks another version of the bootstrap than rank 0", meeting->job);
        return refuse(meeting, listener, fd, FERRY_E_MISMATCH, why);
    }
    if (hello.nranks != meeting->nranks) {
        snprintf(why, sizeof why, "job %s: WORLD_SIZE is %d on rank 0 and %d on rank %d", meeting->job, meeting->nranks,
                 hello.nranks, hello.rank);
        return refuse(meeting, listener, fd, FERRY_E_MISMATCH, why);
    }
    if (hello.rank < 0 || hello.rank >= meeting->nranks) hello.rank = 0; /* no place but that of rank 0 */
    int *place = &meeting->sockets[hello.rank];
    if (*place >= 0 && has_gone(*place)) close_socket(place);
    if (hello.rank == 0 || *place >= 0) {
        snprintf(why, sizeof why, "job %s: two processes say RANK %d; expected each of 0..%d once", meeting->job,
                 hello.rank, meeting->nranks - 1);
        return refuse(meeting, listener, fd, FERRY_E_INVALID, why);
    }
    *place = fd;
    return FERRY_OK;
}

/* How many ranks are still missing, having let go of those that went away again. */
static int count_missing(fy_rendezvous *meeting, int *first) {
    int missing = 0;
    for (int r = meeting->nranks - 1; r > 0; r--) {
        if (meeting->sockets[r] >= 0 && has_gone(meeting->sockets[r])) close_socket(&meeting->sockets[r]);
        if (meeting->sockets[r] >= 0) continue;
        missing++;
        *first = r;
    }
    return missing;
}

static ferry_status gather_ranks(fy_rendezvous *meeting, int listener, int64_t deadline) {
    char why[FY_MESSAGE_TEXT];
    int first = 0, missing;
    while ((missing = count_missing(meeting, &first)) > 0) {
        if (fy_now_ns() >= deadline) {
            snprintf(why, sizeof why, "job %s: rank 0 waited %g s, %d of %d ranks did not come (the first is rank %d)",
                     meeting->job, meeting->timeout_s, missing, meeting->nranks, first);
            return refuse(meeting, listener, -1, FERRY_E_TIMEOUT, why);
        }
        /* Those who went away again are seen at the latest every now and then. */
        int64_t soon = fy_deadline_ns(0.1);
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (poll(&ready, 1, fy_poll_ms(soon < deadline ? soon : deadline)) > 0) FY_TRY(admit(meeting, listener));
    }
    fy_message welcome = message_of(meeting);
    for (int r = 1; r < meeting->nranks; r++) {
        if (fy_socket_send(meeting->sockets[r], &welcome, sizeof welcome, deadline) == 0) continue;
        snprintf(why, sizeof why, "job %s: rank %d ended while the ranks met (%s)", meeting->job, r, strerror(errno));
        return refuse(meeting, listener, -1, FERRY_E_PEER, why);
    }
    return FERRY_OK;
}

/* The listening socket; waits while another process holds the name. */
static ferry_status take_name(fy_rendezvous *meeting, int64_t deadline, int *listener) {
    address own = address_of(meeting->job);
    int64_t challenge = fy_deadline_ns(CHALLENGE_S);
    for (;;) {
        int fd = new_socket();
        if (fd >= 0 && bind(fd, (struct sockaddr *)&own.name, own.bytes) == 0 && listen(fd, SOMAXCONN) == 0) {
            *listener = fd;
            return FERRY_OK;
        }
        int error = errno;
        close_socket(&fd);
        if (error != EADDRINUSE)
            return fy_fail(FERRY_E_SYSTEM, "job %s: rank 0 cannot listen: %s", meeting->job, strerror(error));
        fy_message answer;
        if (fy_now_ns() >= challenge) {
            /* As a second rank 0 this can only be refused, which tells everybody. */
            if (try_to_join(meeting, deadline, &fd, &answer) == REFUSED)
                return fy_fail((ferry_status)answer.status, "%s", answer.text);
            close_socket(&fd);
        }
        if (fy_now_ns() >= deadline)
            return fy_fail(FERRY_E_TIMEOUT, "job %s: its name was held by another process for %g s", meeting->job,
                           meeting->timeout_s);
        fy_sleep_ns(RETRY_NS);
    }
}

static ferry_status host(fy_rendezvous *meeting, int64_t deadline) {
    int listener = -1;
    if (getrandom(&meeting->nonce, sizeof meeting->nonce, 0) != (ssize_t)sizeof meeting->nonce)
        return fy_fail(FERRY_E_SYSTEM, "job %s: getrandom: %s", meeting->job, strerror(errno));
    FY_TRY(take_name(meeting, deadline, &listener));
    ferry_status status = gather_ranks(meeting, listener, deadline);
    close(listener);
    return status;
}

ferry_status fy_rendezvous_meet(fy_rendezvous *meeting) {
    int64_t deadline = fy_deadline_ns(meeting->timeout_s);
    for (int r = 0; r < meeting->nranks; r++) meeting->sockets[r] = -1;
    ferry_status status = meeting->rank == 0 ? host(meeting, deadline) : join(meeting, deadline);
    for (int r = 0; r < meeting->nranks && status != FERRY_OK; r++) close_socket(&meeting->sockets[r]);
    return status;
}
