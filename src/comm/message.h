/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job say to each other while they meet: a fixed header, then `bytes` of payload. */
#ifndef FERRY_COMM_MESSAGE_H
#define FERRY_COMM_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

enum { FY_MESSAGE_TEXT = 228 };

/* Changes with the layout below, so that other versions of the library are told apart. */
#define FY_MESSAGE_MAGIC UINT64_C(0x0100676e69726566)

typedef struct fy_message {
    uint64_t magic;
    uint64_t nonce; /* of this start of the job, from rank 0; 0 before it is known */
    uint64_t round; /* all-gathers before this one */
    uint64_t bytes; /* per rank */
    int32_t rank, nranks;
    int32_t status; /* ferry_status; anything but FERRY_OK ends the job and `text` says why */
    char text[FY_MESSAGE_TEXT];
} fy_message;

/* Rank 0 knows who is missing: the others wait for its verdict this much longer than it waits itself. */
#define FY_VERDICT_NS INT64_C(1000000000)

/* Non-blocking sockets, bounded by a deadline. 0, or -1 and errno: ETIMEDOUT, ECONNRESET when the other end is gone. */
int fy_socket_send(int fd, const void *data, size_t bytes, int64_t deadline_ns);
int fy_socket_receive(int fd, void *data, size_t bytes, int64_t deadline_ns);
/* Milliseconds until the deadline, for poll. */
int fy_poll_ms(int64_t deadline_ns);

#endif
