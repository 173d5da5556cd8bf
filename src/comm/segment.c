/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between processes of one user. Names carry a random part, so what a crashed run left is never met
 * again; while a segment has its name its creator holds a lock, so what has a name and no lock can be taken away. Pages
 * are had before the first access, so a full /dev/shm is an error and not a bus error.
 */
#include "comm/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static const char folder[] = "/dev/shm";
/* A creator locks its segment right after it has made it; nobody takes so long for that. */
static const double sweep_age_s = 10;

unsigned long long fy_segment_free_bytes(void) {
    struct statvfs fs;
    return statvfs(folder, &fs) == 0 ? (unsigned long long)fs.f_bavail * fs.f_frsize : 0;
}

static int prefix_of_user(char *prefix, size_t size) {
    return snprintf(prefix, size, "ferry-%u-", (unsigned)geteuid());
}

/* A new segment's descriptor and name, or -1 and errno. */
static int open_new(char name[FY_SEGMENT_NAME]) {
    for (int attempt = 0; attempt < 16; attempt++) {
        uint64_t nonce;
        if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce) return -1;
        char prefix[32];
        prefix_of_user(prefix, sizeof prefix);
        snprintf(name, FY_SEGMENT_NAME, "/%s%d-%016llx", prefix, (int)getpid(), (unsigned long long)nonce);
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

static void sweep_one(const char *name, double age_s) {
    char path[FY_SEGMENT_NAME + 1];
    struct stat found;
    if (snprintf(path, sizeof path, "/%s", name) >= (int)sizeof path) return;
    int fd = shm_open(path, O_RDWR, 0);
    if (fd < 0) return;
    if (fstat(fd, &found) == 0 && difftime(time(NULL), found.st_ctime) >= age_s && flock(fd, LOCK_EX | LOCK_NB) == 0)
        shm_unlink(path);
    close(fd);
}

void fy_segment_sweep(double age_s) {
    char prefix[32];
    int length = prefix_of_user(prefix, sizeof prefix);
    DIR *all = opendir(folder);
    if (all == NULL) return;
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (strncmp(entry->d_name, prefix, (size_t)length) == 0) sweep_one(entry->d_name, age_s);
    closedir(all);
}

ferry_status fy_segment_create(size_t bytes, const char *what, fy_named_segment *segment, unsigned char **memory) {
    if (bytes > PTRDIFF_MAX)
        return fy_fail(FERRY_E_MEMORY, "%s: %zu bytes of shared memory wanted, more than any process can map", what,
                       bytes);
    fy_segment_sweep(sweep_age_s);
    segment->lock = open_new(segment->name);
    if (segment->lock < 0)
        return fy_fail(FERRY_E_SYSTEM, "%s: shm_open of a new segment %s: %s", what, segment->name, strerror(errno));
    ferry_status status = FERRY_OK;
    if (flock(segment->lock, LOCK_EX | LOCK_NB) != 0)
        status = fy_fail(FERRY_E_SYSTEM, "%s: locking the new segment %s: %s", what, segment->name, strerror(errno));
    if (status == FERRY_OK) status = allocate(segment->lock, bytes, what);
    if (status == FERRY_OK) status = map(segment->lock, bytes, what, memory);
    if (status != FERRY_OK) fy_segment_unlink(segment);
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

void fy_segment_unlink(fy_named_segment *segment) {
    shm_unlink(segment->name);
    close(segment->lock);
    segment->lock = -1;
}
