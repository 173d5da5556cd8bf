/* SPDX-License-Identifier: Apache-2.0 */
/* What a call's launches do, and what must then be true: computed here again from the callers' ids, in the plainest
 * way. */
#ifndef FERRY_LANES_CHECKS_H
#define FERRY_LANES_CHECKS_H

#include "layer.h"

/* Fails, with the rank in front, unless `holds`. */
#define CHECK(holds, rank, format, ...)                                                                                \
    do {                                                                                                               \
        if (!(holds)) return fail("rank %d: " format, rank, __VA_ARGS__);                                              \
    } while (0)

void run_schedule(); /* count, rank, wait, place on every rank */

/* Of one rank; a failure is left in `failure`. */
void check_rows(made_up_rank &q);    /* expert <-> block, row <-> slot, what was cleared and staged */
void check_tiles(made_up_rank &q);   /* tiles in walk order, pieces, the head */
void check_tickets(made_up_rank &q); /* units and their tickets */
void check_reports(made_up_rank &q); /* the host's page, rows of experts, load */
void run_sums(made_up_rank &q);      /* rows arrive while tokens are collected and summed; out must be right */

/* What tiles wait for comes about while blocks choose them; tickets and counters are then as before. */
void run_choice(made_up_rank &q);
void run_signals(made_up_rank &q); /* two warpgroups post, one warp signals; `arrived` is then as before */

/* Some rank has too many tokens: then the call does nothing. */
bool call_is_skipped();

#endif
