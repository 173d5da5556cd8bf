/* SPDX-License-Identifier: Apache-2.0 */
/* The vendor's product on a GPU, from a library that is looked for at run time: a yardstick, where it is there. */
#ifndef FERRY_CLI_BENCH_LIBRARY_H
#define FERRY_CLI_BENCH_LIBRARY_H

typedef struct bench_library bench_library;

/* Of the current device; NULL when there is no such library or it does not work. */
bench_library *bench_library_open(void *stream);
void bench_library_close(bench_library *library);
/* Enqueues C [n, n] = A [n, n] x B [n, n]^T, BF16 with F32 sums. 1 on success. */
int bench_library_product(bench_library *library, int n, const void *a, const void *b, void *c);

#endif
