/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine, asked of the driver, which is looked for at run time: no CUDA toolkit is needed. */
#ifndef FERRY_CLI_GPUS_H
#define FERRY_CLI_GPUS_H

#include <stdint.h>

enum { GPU_MAX = 16 };

typedef struct gpu_info {
    char name[96];
    int64_t memory_bytes;
    int major, minor;  /* compute capability */
    int processors;    /* streaming multiprocessors */
    int peer[GPU_MAX]; /* 1: it can read and write the memory of that GPU directly */
} gpu_info;

typedef struct gpu_list {
    int count;
    int driver;       /* CUDA version that the driver supports, 1000 * major + 10 * minor; 0: no driver */
    char absent[160]; /* why there are none, or "" */
    gpu_info gpu[GPU_MAX];
} gpu_list;

void gpu_list_read(gpu_list *list);

#endif
