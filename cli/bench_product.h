/* SPDX-License-Identifier: Apache-2.0 */
/* What the cores can do without a layer: the plain product kernel, and copying, on all threads at once. */
#ifndef FERRY_CLI_BENCH_PRODUCT_H
#define FERRY_CLI_BENCH_PRODUCT_H

#include "ferry/ferry.h"

/* A product [rows, depth] x [columns, depth]^T whose whole tiles threads take in turn. */
typedef struct bench_product bench_product;

/* Rows and columns are rounded up to whole tiles. NULL when there is no memory or no such instruction set. */
bench_product *bench_product_create(ferry_isa isa, int threads, int64_t rows, int64_t columns, int64_t depth);
void bench_product_destroy(bench_product *product);
/* Operations per second of all threads together, each counting from its first to its last tile; 0 when a thread could
 * not be started. */
double bench_product_run(bench_product *product, double seconds);

/* Rates of this machine with `threads` threads, in half a second each; 0 on failure. Copy: bytes read plus written. */
double bench_product_quick(int threads);
double bench_copy_quick(int threads);

#endif
