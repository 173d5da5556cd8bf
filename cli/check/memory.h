/* SPDX-License-Identifier: Apache-2.0 */
/* The memory suite has two files: plans and peaks (memory.c), and what must not grow or overflow (cycles.c). */
#ifndef FERRY_CLI_CHECK_MEMORY_H
#define FERRY_CLI_CHECK_MEMORY_H

#include "cli/check/session.h"

void check_add_cycles(check_list *list, const check_options *options);

#endif
