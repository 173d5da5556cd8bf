/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's part as shared memory between processes; symmetric.c decides who makes and maps what, when. */
#ifndef FERRY_COMM_SEGMENT_H
#define FERRY_COMM_SEGMENT_H

#include "core/status.h"

#include <stddef.h>

enum { FY_SEGMENT_NAME = 64 };

/* A segment that still has a name. The descriptor holds a lock that ends with its process, so that others can tell a
 * name in use from one that a crash left. */
typedef struct fy_named_segment {
    char name[FY_SEGMENT_NAME];
    int lock;
} fy_named_segment;

/* Makes a zeroed segment, all of its pages there, under a name that nobody had; maps it. Nothing is left on failure.
 * Names of this user that crashed processes have left are taken away first. */
ferry_status fy_segment_create(size_t bytes, const char *what, fy_named_segment *segment, unsigned char **memory);
/* Maps the segment of a peer. */
ferry_status fy_segment_open(const char *name, size_t bytes, const char *what, unsigned char **memory);
void fy_segment_unmap(unsigned char *memory, size_t bytes);
/* Takes the name away; mappings stay. */
void fy_segment_unlink(fy_named_segment *segment);
/* Takes away what crashed processes of this user have left for longer than `age_s` seconds. */
void fy_segment_sweep(double age_s);
/* What the file system of segments has free. */
unsigned long long fy_segment_free_bytes(void);

#endif
