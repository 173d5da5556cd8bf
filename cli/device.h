/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a rank's tensors are: in the memory of this process (CPU backend) or on a GPU (CUDA backend). One small table
 * of memory operations per backend, so that whoever runs a layer is one code path for both.
 */
#ifndef FERRY_CLI_DEVICE_H
#define FERRY_CLI_DEVICE_H

#include "ferry/ferry.h"

#include <stddef.h>

/* The devices of a backend on this machine. */
typedef struct cli_devices {
    int count;
    int processors; /* multiprocessors of the first GPU; 0 on the host */
    char name[256]; /* of the first GPU, or "host" */
    char why[160];  /* why the backend cannot be used, or "" */
} cli_devices;

/* Each returns NULL, or why it failed. Work on a device happens in the order of `stream`, one per rank: a stream that
 * ranks shared would let one rank's waiting hold up the rank it waits for. */
typedef struct cli_device_ops {
    const char *(*find)(cli_devices *devices);     /* fills all but `why` */
    const char *(*open)(int index, void **stream); /* makes it the device of this thread */
    void (*close)(void *stream);
    const char *(*alloc)(void **memory, size_t bytes); /* aligned to at least 256 bytes */
    void (*free)(void *memory);
    const char *(*copy)(void *to, const void *from, size_t bytes, void *stream); /* to, from or on the device */
    const char *(*fill)(void *to, int byte, size_t bytes, void *stream);
    const char *(*wait)(void *stream); /* until all work is done */
    int in_place;                      /* 1: the device's memory is the host's */
} cli_device_ops;

extern const cli_device_ops cli_device_host;
extern const cli_device_ops *const cli_device_cuda; /* NULL: not in this build */

enum { CLI_DEVICE_BLOCKS = 32 };

/* One rank's device, and what is there on its behalf. */
typedef struct cli_device {
    const cli_device_ops *ops; /* NULL: not open */
    int index;                 /* for ferry_comm_config.device */
    void *stream;              /* for calls of the layer */
    char why[200];             /* the first failure, or "" */
    struct cli_device_block {
        void *memory, *host; /* host: where a result goes; NULL: no result */
        size_t bytes;
    } block[CLI_DEVICE_BLOCKS];
    int blocks;
} cli_device;

/* Asked in a child process, so that this one, which must not have touched a GPU before it forks ranks, still can.
 * 1, or 0 with devices->why when the backend cannot be used here. Before any rank opens a device. */
int cli_devices_find(ferry_backend backend, cli_devices *devices);

/* For rank `rank` of ranks on this machine: the devices in turn. 1, or 0 with device->why; close it in both cases. */
int cli_device_open(cli_device *device, ferry_backend backend, int rank);
/* The number of the device that cli_device_open takes for that rank; 0 when there is none. */
int cli_device_index(ferry_backend backend, int rank);
/* Frees what was allocated. */
void cli_device_close(cli_device *device);

/* Memory until close; NULL with device->why. */
void *cli_device_alloc(cli_device *device, size_t bytes);
/* 1, or 0 with device->why. When it returns, the copy has been made. */
int cli_device_copy(cli_device *device, void *to, const void *from, size_t bytes);
int cli_device_fill(cli_device *device, void *to, int byte, size_t bytes);
int cli_device_wait(cli_device *device);

/* What `host` holds, on the device; `host` itself where that is the same. NULL stays NULL. */
void *cli_device_in(cli_device *device, const void *host, size_t bytes);
/* Room on the device for a result that cli_device_collect copies to `host`; all its bits are set before. */
void *cli_device_out(cli_device *device, void *host, size_t bytes);
/* Waits for the device, then copies all results. 1, or 0 with device->why. */
int cli_device_collect(cli_device *device);

#endif
