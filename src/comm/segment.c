/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between processes of one user. Names carry a random part, so what a crashed run left is never met
 * again, and pages are had before the first access, so a full /dev/shm is an error and not a bus error.
 */
#include "comm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

unsigned long long fy_segment_free_bytes(void) {
    struct statvfs fs;
    return statvfs("/dev/shm", &fs) == 0 ? (unsigned long long)fs.f_bavail * fs.f_frsize : 0;
}

/* A new segment's descriptor and name, or -1 and errno. */
static int open_new(char name[FY_SEGMENT_NAME]) {
    for (int attempt = 0; attempt < 16; attempt++) {
        uint64_t nonce;
        if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce) return -1;
        snprintf(name, FY_SEGMENT_NAME, "/ferry-%u-%d-%016llx", (unsigned)geteuid(), (int)getpid(),
                 (unsigned long long)nonce);
        int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static ferry_status allocate(int fd, size_t bytes, const char *what) {
    int error;
    do error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error == 0) return FERRY_OK;
    return fy_fail(FERRY_E_MEMORY,
                   "%s: %zu bytes of shared memory wanted, /dev/shm has %llu free (%s); make /dev/shm larger", what,
                   bytes, fy_segment_free_bytes(), strerror(error));
}

static ferry_status map(int fd, size_t bytes, const char *what, unsigned char **memory) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return fy_fail(errno == ENOMEM ? FERRY_E_MEMORY : FERRY_E_SYSTEM, "%s: mmap of %zu bytes of shared memory: %s",
                       what, bytes, strerror(errno));
    *memory = mapped;
    return FERRY_OK;
}

ferry_status fy_segment_create(size_t bytes, const char *what, char name[FY_SEGMENT_NAME], unsigned char **memory) {
    if (bytes > PTRDIFF_MAX)
        return fy_fail(FERRY_E_MEMORY, "%s: %zu bytes of shared memory wanted, more than any process can map", what,
                       bytes);
    int fd = open_new(name);
    if (fd < 0) return fy_fail(FERRY_E_SYSTEM, "%s: shm_open of a new segment %s: %s", what, name, strerror(errno));
    ferry_status status = allocate(fd, bytes, what);
    if (status == FERRY_OK) status = map(fd, bytes, what, memory);
    if (status != FERRY_OK) shm_unlink(name);
    close(fd);
    return status;
}

ferry_status fy_segment_open(const char *name, size_t bytes, const char *what, unsigned char **memory) {
    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return fy_fail(FERRY_E_SYSTEM, "%s: shm_open of a peer's segment %s: %s; do all ranks see one /dev/shm?", what,
                       name, strerror(errno));
    struct stat found;
    ferry_status status;
    if (fstat(fd, &found) != 0 || found.st_uid != geteuid() || (uint64_t)found.st_size < bytes)
        status = fy_fail(FERRY_E_SYSTEM, "%s: a peer's segment %s is not what it announced (%zu bytes of user %u)",
                         what, name, bytes, (unsigned)geteuid());
    else
        status = map(fd, bytes, what, memory);
    close(fd);
    return status;
}

void fy_segment_unmap(unsigned char *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

void fy_segment_unlink(const char *name) { shm_unlink(name); }
