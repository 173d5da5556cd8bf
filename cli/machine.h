/* SPDX-License-Identifier: Apache-2.0 */
/* What this build and this machine offer. */
#ifndef FERRY_CLI_MACHINE_H
#define FERRY_CLI_MACHINE_H

#include "ferry/ferry.h"

/* Processors that this process may use; at least 1. */
int machine_processors(void);
/* The processor's name in `to`; "unknown" where the system does not say. */
void machine_processor_name(char *to, size_t room);
/* Whether the system lists the feature ("avx2") among the processor's flags. */
int machine_has_feature(const char *name);
/* The name of the product kernels that `isa` selects here, or NULL with ferry_last_error() set. */
const char *machine_isa_name(ferry_isa isa);
/* Free bytes of /dev/shm, where the ranks of one machine meet when they are processes; -1 when there is none. */
int64_t machine_shm_free(void);
/* Whether this build has the CUDA backend. */
int machine_built_with_cuda(void);

#endif
