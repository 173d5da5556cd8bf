/* SPDX-License-Identifier: Apache-2.0 */
/* Sending and receiving whole buffers within a deadline. */
#include "comm/message.h"

#include "comm/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

int fy_poll_ms(int64_t deadline_ns) {
    int64_t left_ns = deadline_ns - fy_now_ns();
    if (left_ns <= 0) return 0;
    int64_t ms = left_ns / 1000000 + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

/* After a call that moved nothing: 0 when it may be tried again. */
static int wait_ready(int fd, short events, int64_t deadline_ns) {
    if (errno == EPIPE) errno = ECONNRESET;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return -1;
    if (fy_now_ns() >= deadline_ns) {
        errno = ETIMEDOUT;
        return -1;
    }
    struct pollfd ready = {.fd = fd, .events = events};
    poll(&ready, 1, fy_poll_ms(deadline_ns));
    return 0;
}

int fy_socket_send(int fd, const void *data, size_t bytes, int64_t deadline_ns) {
    const unsigned char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (wait_ready(fd, POLLOUT, deadline_ns) != 0) {
            return -1;
        }
    }
    return 0;
}

int fy_socket_receive(int fd, void *data, size_t bytes, int64_t deadline_ns) {
    unsigned char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else {
            if (got == 0) errno = ECONNRESET;
            if (wait_ready(fd, POLLIN, deadline_ns) != 0) return -1;
        }
    }
    return 0;
}
