/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a device, and what a rank does with either. */
#include "cli/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The host ---- */

static const char *host_find(cli_devices *devices) {
    *devices = (cli_devices){.count = 1, .name = "host"};
    return NULL;
}

static const char *host_open(int index, void **stream) {
    (void)index;
    *stream = NULL;
    return NULL;
}

static void host_close(void *stream) { (void)stream; }

static const char *host_alloc(void **memory, size_t bytes) {
    return posix_memalign(memory, 256, bytes ? bytes : 1) ? "out of memory; a smaller layer or fewer ranks need less"
                                                          : NULL;
}

static const char *host_copy(void *to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, from, bytes);
    return NULL;
}

static const char *host_fill(void *to, int byte, size_t bytes, void *stream) {
    (void)stream;
    memset(to, byte, bytes);
    return NULL;
}

static const char *host_wait(void *stream) {
    (void)stream;
    return NULL;
}

const cli_device_ops cli_device_host = {.find = host_find,
                                        .open = host_open,
                                        .close = host_close,
                                        .alloc = host_alloc,
                                        .free = free,
                                        .copy = host_copy,
                                        .fill = host_fill,
                                        .wait = host_wait,
                                        .in_place = 1};

/* ---- Finding devices ---- */

static const cli_device_ops *ops_of(ferry_backend backend) {
    return backend == FERRY_CUDA ? cli_device_cuda : &cli_device_host;
}

static const char *find(ferry_backend backend, cli_devices *devices) {
    *devices = (cli_devices){.count = 0};
    const cli_device_ops *ops = ops_of(backend);
    const char *why = ops ? ops->find(devices) : "not in this build";
    return why ? why : devices->count < 1 ? "this machine has no GPU" : NULL;
}

int cli_devices_find(ferry_backend backend, cli_devices *devices) {
    int ends[2];
    *devices = (cli_devices){.why = "no answer from the process that looks for devices"};
    /* Ranks that share a GPU wait for each other there, so none may queue behind another. CUDA reads it when it
     * starts, in this process or in those that it forks. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (pipe(ends)) return 0;
    fflush(NULL); /* or the child would print what is buffered here again */
    pid_t pid = fork();
    if (pid == 0) {
        cli_devices found;
        const char *why = find(backend, &found);
        if (why)
            snprintf(found.why, sizeof found.why, "the %s backend: %s", backend == FERRY_CUDA ? "CUDA" : "CPU", why);
        _exit(write(ends[1], &found, sizeof found) != (ssize_t)sizeof found);
    }
    close(ends[1]);
    cli_devices found;
    if (pid > 0 && read(ends[0], &found, sizeof found) == (ssize_t)sizeof found) *devices = found;
    if (pid > 0) waitpid(pid, NULL, 0);
    close(ends[0]);
    return devices->why[0] == 0;
}

/* ---- A rank's device ---- */

/* " 12.5 GiB", or "" for none. */
static void print_size(size_t bytes, char *to, size_t room) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    to[0] = '\0';
    if (bytes) snprintf(to, room, " %.*f %s", unit > 0, value, units[unit]);
}

/* Keeps the first failure, with the number of a GPU; the host has none. 1 when there is none. */
static int note(cli_device *device, const char *doing, size_t bytes, const char *why) {
    char size[32], number[32] = "";
    if (!why) return 1;
    if (device->why[0]) return 0;
    print_size(bytes, size, sizeof size);
    if (!device->ops || !device->ops->in_place) snprintf(number, sizeof number, "device %d: ", device->index);
    snprintf(device->why, sizeof device->why, "%s%s%s: %s", number, doing, size, why);
    return 0;
}

int cli_device_index(ferry_backend backend, int rank) {
    cli_devices devices;
    return find(backend, &devices) ? 0 : rank % devices.count;
}

int cli_device_open(cli_device *device, ferry_backend backend, int rank) {
    cli_devices devices;
    *device = (cli_device){.ops = NULL};
    const char *why = find(backend, &devices);
    if (why) {
        snprintf(device->why, sizeof device->why, "%s", why);
        return 0;
    }
    device->index = rank % devices.count;
    why = ops_of(backend)->open(device->index, &device->stream);
    if (why) return note(device, "opening it", 0, why);
    device->ops = ops_of(backend);
    return 1;
}

void cli_device_close(cli_device *device) {
    if (!device->ops) return;
    device->ops->wait(device->stream);
    for (int i = 0; i < device->blocks; i++) device->ops->free(device->block[i].memory);
    device->ops->close(device->stream);
    device->ops = NULL;
}

void *cli_device_alloc(cli_device *device, size_t bytes) {
    void *memory = NULL;
    const char *full = device->blocks == CLI_DEVICE_BLOCKS ? "too many blocks" : NULL;
    if (!note(device, "allocating", bytes, full ? full : device->ops->alloc(&memory, bytes))) return NULL;
    device->block[device->blocks++] = (struct cli_device_block){.memory = memory, .bytes = bytes};
    return memory;
}

int cli_device_copy(cli_device *device, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return 1;
    return note(device, "copying", bytes, device->ops->copy(to, from, bytes, device->stream)) &&
           cli_device_wait(device);
}

int cli_device_fill(cli_device *device, void *to, int byte, size_t bytes) {
    if (bytes == 0) return 1;
    return note(device, "filling", bytes, device->ops->fill(to, byte, bytes, device->stream)) &&
           cli_device_wait(device);
}

int cli_device_wait(cli_device *device) { return note(device, "working", 0, device->ops->wait(device->stream)); }

void *cli_device_in(cli_device *device, const void *host, size_t bytes) {
    if (device->ops->in_place || !host) return (void *)host;
    void *memory = cli_device_alloc(device, bytes);
    return memory && cli_device_copy(device, memory, host, bytes) ? memory : NULL;
}

void *cli_device_out(cli_device *device, void *host, size_t bytes) {
    if (device->ops->in_place || !host) return host;
    void *memory = cli_device_alloc(device, bytes);
    if (!memory || !cli_device_fill(device, memory, 0xff, bytes)) return NULL;
    device->block[device->blocks - 1].host = host;
    return memory;
}

int cli_device_collect(cli_device *device) {
    int good = cli_device_wait(device);
    for (int i = 0; i < device->blocks && good; i++) {
        const struct cli_device_block *block = &device->block[i];
        if (block->host) good = cli_device_copy(device, block->host, block->memory, block->bytes);
    }
    return good;
}
