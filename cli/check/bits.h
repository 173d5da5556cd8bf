/* SPDX-License-Identifier: Apache-2.0 */
/* The bits suite: the same bits from every way of running (bits.c), and which bits they are (order.c). */
#ifndef FERRY_CLI_CHECK_BITS_H
#define FERRY_CLI_CHECK_BITS_H

#include "cli/check/session.h"

check_body check_documented_order;

#endif
