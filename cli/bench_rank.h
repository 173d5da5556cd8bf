/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry bench` while it measures. */
#ifndef FERRY_CLI_BENCH_RANK_H
#define FERRY_CLI_BENCH_RANK_H

#include "cli/bench.h"
#include "cli/bench_product.h"

typedef struct bench_rank_state {
    const bench_job *job;
    bench_result *result;
    int rank;
    int32_t tokens;
    int64_t first; /* token */
    cli_device device;
    ferry_comm *comm;
    ferry_layer *layer;
    ferry_context *context; /* NULL: the backend has no backward */
    bench_product *product; /* of a CPU */
    ferry_forward_args forward;
    ferry_backward_args backward;
    int seeds; /* of random tensors so far */
} bench_rank_state;

/* Uniform numbers of standard deviation `scale` in BF16, from a stretch that repeats in large tensors; NULL with
 * device.why. */
void *bench_random(bench_rank_state *s, int64_t count, double scale);

/* Arguments with tensors of the device, for the context of the state, where there is one. result->plan has been filled.
 * What failed is in device.why. */
void bench_fill_forward(bench_rank_state *s);
void bench_fill_backward(bench_rank_state *s); /* after the forward's */

/* All repetitions on a GPU. 0, or the exit code after a message. */
int bench_cuda_repeat(bench_rank_state *s);

#endif
