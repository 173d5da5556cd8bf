/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors over Unix sockets, for memory.c. Every rank listens before the addresses are gathered, so no connection
 * comes too early; a rank that cannot listen gathers all the same, with length 0, which ends the exchange on all.
 */
#include "cuda/handles.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An abstract name: it has no file that could be left over, and is gone with the socket. */
typedef struct address {
    struct sockaddr_un at;
    uint32_t length; /* 0: this rank has no socket */
} address;

static ferry_status failed(const char *doing) {
    return fy_fail(FERRY_E_SYSTEM, "exchanging memory handles: %s: %s", doing, strerror(errno));
}

static ferry_status open_listener(const ferry_comm *comm, int *listener, address *a) {
    uint64_t name[2];
    memset(a, 0, sizeof *a);
    if (getrandom(name, sizeof name, 0) != sizeof name) return failed("getrandom");
    a->at.sun_family = AF_UNIX;
    int n = snprintf(a->at.sun_path + 1, sizeof a->at.sun_path - 1, "ferry-%016llx%016llx", (unsigned long long)name[0],
                     (unsigned long long)name[1]);
    *listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*listener < 0) return failed("socket");
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    double seconds = comm->config.enter_timeout_s < 60 ? comm->config.enter_timeout_s : 60;
    struct timeval limit = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6) + 1};
    if (setsockopt(*listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit)) return failed("setsockopt");
    if (bind(*listener, (struct sockaddr *)&a->at, length)) return failed("bind");
    if (listen(*listener, comm->nranks)) return failed("listen");
    a->length = length;
    return FERRY_OK;
}

/* A connection stands as soon as the peer listens; what is sent waits there until the peer accepts. */
static ferry_status send_to(const address *peer, int rank, int fd) {
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0) return failed("socket");
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {&rank, sizeof rank};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    ferry_status status = FERRY_OK;
    if (connect(s, (const struct sockaddr *)&peer->at, peer->length))
        status = failed("connect");
    else if (sendmsg(s, &message, MSG_NOSIGNAL) != sizeof rank)
        status = failed("sendmsg");
    close(s);
    return status;
}

/* One message of a peer that runs as the same user. */
static ferry_status receive_from(int listener, int nranks, int *fds) {
    int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (s < 0) return failed("accept (a peer did not send its handle in time)");
    struct ucred who;
    socklen_t who_length = sizeof who;
    int rank = -1, fd = -1;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {&rank, sizeof rank};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int trusted = getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &who_length) == 0 && who.uid == geteuid();
    ssize_t got = trusted ? recvmsg(s, &message, MSG_CMSG_CLOEXEC) : -1;
    struct cmsghdr *c = got == sizeof rank ? CMSG_FIRSTHDR(&message) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd)) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    close(s);
    if (fd >= 0 && rank >= 0 && rank < nranks && fds[rank] < 0) {
        fds[rank] = fd;
        return FERRY_OK;
    }
    if (fd >= 0) close(fd);
    return fy_fail(FERRY_E_SYSTEM,
                   "exchanging memory handles: a message that is not a handle of rank 0 to %d of this user",
                   nranks - 1);
}

ferry_status fy_exchange_handles(ferry_comm *comm, int mine, int *fds) {
    address own, all[FY_MAX_RANKS];
    int listener = -1;
    for (int r = 0; r < comm->nranks; r++) fds[r] = -1;
    ferry_status status = open_listener(comm, &listener, &own);
    ferry_status gathered = fy_allgather(comm, &own, all, sizeof own);
    if (status == FERRY_OK) status = gathered;
    for (int r = 0; r < comm->nranks && status == FERRY_OK; r++)
        if (all[r].length == 0) status = fy_fail(FERRY_E_PEER, "exchanging memory handles: rank %d has no socket", r);
    for (int r = 0; r < comm->nranks && status == FERRY_OK; r++)
        if (r != comm->rank) status = send_to(&all[r], comm->rank, mine);
    for (int i = 1; i < comm->nranks && status == FERRY_OK; i++) status = receive_from(listener, comm->nranks, fds);
    if (listener >= 0) close(listener);
    for (int r = 0; r < comm->nranks && status != FERRY_OK; r++) {
        if (fds[r] >= 0) close(fds[r]);
        fds[r] = -1;
    }
    return status;
}
