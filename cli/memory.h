/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this machine's memory holds what a command is about to make. In doubles, which no extents overflow. */
#ifndef FERRY_CLI_MEMORY_H
#define FERRY_CLI_MEMORY_H

#include "ferry/ferry.h"

/* Bytes of what calls of a layer read: x, weights, ids and router weights, and `dout`; over all ranks' `tokens`. */
double memory_of_inputs(const ferry_layer_config *config, int64_t tokens, int dout);
/* And of what they leave: out; when `backward`, dx, the router weights' gradients, and gradients of so many bytes. */
double memory_of_results(const ferry_layer_config *config, int64_t tokens, int backward, int gradient_bytes);
/* Bytes that one layer on CPUs holds on all ranks, with its contexts when `backward`. */
double memory_of_layer(const ferry_layer_config *config, int nranks, int comm_workers, int compute_workers,
                       int backward);
/* Refuses what needs more bytes than are available: a machine that runs out of memory kills the process without a
 * word. `what`: "the layer and its tensors"; `instead`: what to give. 0, or the exit code after a message. */
int memory_check(const char *what, double bytes, const char *instead);
/* Likewise so many layers on CPUs beside `beside` bytes, and before that a layer that cannot be. */
int memory_check_layers(const ferry_layer_config *config, int nranks, int comm_workers, int compute_workers, int layers,
                        int backward, double beside, const char *instead);

#endif
