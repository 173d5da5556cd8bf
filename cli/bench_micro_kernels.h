/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of `ferry bench --micro`: copies of rows in any order, and signals between two blocks. */
#ifndef FERRY_CLI_BENCH_MICRO_KERNELS_H
#define FERRY_CLI_BENCH_MICRO_KERNELS_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MICRO_MOST_PEERS = 16 };

/* Row i goes from row from_row[i] of from[i % peers] to row to_row[i] of to[i % peers]. */
typedef struct micro_copy {
    const void *from[MICRO_MOST_PEERS];
    void *to[MICRO_MOST_PEERS];
    const int32_t *from_row, *to_row;
    int peers, rows, row_bytes; /* bytes: a multiple of 512 */
} micro_copy;

/* Loads the kernels: loading one when it is first launched may wait for what runs on the GPU. */
cudaError_t micro_load(void);
/* Row r is filled with words that tell r and the place in the row. */
cudaError_t micro_fill(void *memory, int rows, int row_bytes, cudaStream_t stream);
cudaError_t micro_copy_rows(const micro_copy *c, int blocks, cudaStream_t stream);
/* Adds the number of words that differ between the rows of `c` to *wrong, on the device. */
cudaError_t micro_compare_rows(const micro_copy *c, uint32_t *wrong, cudaStream_t stream);

typedef enum micro_end { MICRO_SPEAKER, MICRO_LISTENER, MICRO_BOTH_ENDS } micro_end;

/*
 * `turns` times: the speaker's block copies `bytes`, raises `heard` and waits until the listener has raised `answered`.
 * Both ends on one device order with fences of the device, else of the system. No flags: copies alone. Counters go on
 * from `first` turns, a wait gives up after a second. *ns gets the speaker's time, or 0 when a wait gave up.
 */
typedef struct micro_signal {
    const void *from;
    void *to;
    int bytes;                  /* a multiple of 16; 0: nothing is copied */
    uint32_t *heard, *answered; /* in the listener's and in the speaker's memory; NULL: no signals */
    uint32_t first;
    int turns, one_device;
    uint64_t *ns; /* the speaker's */
} micro_signal;

cudaError_t micro_run_signal(const micro_signal *s, micro_end end, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
