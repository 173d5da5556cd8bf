/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's tensors of a batch, in memory of their own. Every 16 bits that are not a value of a tensor (guards around
 * it, gaps between rows and experts), and every output before it is written, hold a pattern that is NaN as BF16 and
 * F32 and a bad id: reading beside a tensor shows in the results, writing beside it is found afterwards.
 * On a GPU every buffer has a twin there, of the same layout; calls get the twin's addresses.
 */
#ifndef FERRY_CLI_CHECK_SHARD_H
#define FERRY_CLI_CHECK_SHARD_H

#include "cli/check/result.h"
#include "cli/device.h"

typedef struct check_buffer {
    uint16_t *memory; /* guard, body, guard; or the body alone when it is symmetric memory */
    int64_t words;    /* of memory */
    uint16_t *body;
    int symmetric;
    uint16_t *twin; /* of `memory`, where calls see it: `memory` itself on the CPU */
} check_buffer;

/* Matrices somewhere in a buffer, and where their values are in a global array. */
typedef struct check_view {
    ferry_matrices at;
    int64_t count, rows, columns;
    int64_t *offset; /* [count] element of the global array where each matrix begins */
} check_view;

enum { CHECK_SHARD_INPUTS = CHECK_SHARED_DOWN - CHECK_X + 1, CHECK_SHARD_BUFFERS = 24 };

typedef struct check_shard {
    const check_case *c;
    const check_batch *batch;
    const check_way *way;
    ferry_comm *comm;
    int rank;
    int64_t tokens, first, experts; /* this rank's; the first token's global index */
    int32_t num_tokens;
    check_buffer buffer[CHECK_SHARD_BUFFERS];
    int buffers;
    check_view input[CHECK_SHARD_INPUTS]; /* by CHECK_X .. CHECK_SHARED_DOWN */
    check_view output[CHECK_TENSOR_COUNT];
    void **tables[CHECK_SHARD_BUFFERS];
    void **twin_tables[CHECK_SHARD_BUFFERS]; /* the same pointers as calls see them */
    cli_device device;
    ferry_forward_args forward;   /* without context */
    ferry_backward_args backward; /* likewise; all parts */
} check_shard;

/* `comm` serves symmetric ways, for which this is collective. 0 after a check_fail; then nothing is left. */
int check_shard_make(const check_case *c, const check_batch *batch, const check_way *way, int rank, ferry_comm *comm,
                     check_shard *shard);
/* Until the device has done what was asked of it; 0 after a check_fail. */
int check_shard_wait(check_shard *shard);
/* What a context has copied (x, ids, weights) must be unchanged, and is then overwritten. */
void check_shard_forget(check_shard *shard);
/* 1 while no output (of a way with beta 0) was written. */
int check_shard_untouched(check_shard *shard);
/* Copies the outputs into the global result, and checks that nothing else was written. Ends the use of the shard's
 * values: the arguments still hold, the memory is all pattern. */
void check_shard_gather(check_shard *shard, check_result *result);
/* Accepts a shard that is all zero. */
void check_shard_free(check_shard *shard);

#endif
