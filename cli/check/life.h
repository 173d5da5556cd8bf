/* SPDX-License-Identifier: Apache-2.0 */
/* The life suite has two files: calls that work (life.c) and calls that are refused (errors.c). */
#ifndef FERRY_CLI_CHECK_LIFE_H
#define FERRY_CLI_CHECK_LIFE_H

#include "cli/check/session.h"

void check_add_errors(check_list *list);

#endif
