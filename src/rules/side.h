/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second-level cache of Hopper lies in two halves. A multiprocessor reads through the half that is near it; what
 * belongs to the other half crosses a link that is narrower than either, and is then in both. So a column of weights
 * is left to multiprocessors of one side: columns below the middle to side 0, those above to side 1; of a column in the
 * middle the first half of the rows to side 0.
 */
#ifndef FERRY_RULES_SIDE_H
#define FERRY_RULES_SIDE_H

#include "rules/rule.h"

enum { FY_SIDES = 2, FY_SIDE_LINES = 16 };

/*
 * Tickets of a side for `rows` x `columns` tiles: those of its columns / 2 whole columns come first, then those in the
 * column in the middle.
 */
FY_RULE int fy_side_tickets(int rows, int columns, int side) {
    return rows * (columns / 2) + (columns % 2 ? (rows + 1 - side) / 2 : 0);
}

/* The first whole column of a side. */
FY_RULE int fy_side_first(int columns, int side) { return side == 0 ? 0 : columns - columns / 2; }

/* The row of a ticket that is in the column in the middle, whose number is columns / 2; -1: it is in a whole one. */
FY_RULE int fy_side_middle_row(int rows, int columns, int side, int ticket) {
    int past = ticket - rows * (columns / 2);
    return past < 0 ? -1 : past + (side == 0 ? 0 : (rows + 1) / 2);
}

/*
 * On which side each of n multiprocessors is, from the time that an access to each of FY_SIDE_LINES lines of memory
 * takes it, whose owners are near or far: side[] becomes 0 and 1 by the sign of the strongest common pattern. 1, or 0
 * and all zeros where the two sides do not stand clearly apart.
 */
static inline int fy_split_sides(const float *time, int n, uint8_t *side) {
    double mean[FY_SIDE_LINES] = {0}, weight[FY_SIDE_LINES], low = 0, high = 0, within = 0;
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < FY_SIDE_LINES; j++) mean[j] += time[i * FY_SIDE_LINES + j] / (double)n;
    for (int i = 0; i < n; i++) side[i] = time[i * FY_SIDE_LINES] > mean[0];
    for (int turn = 0; turn < 8; turn++) {
        for (int j = 0; j < FY_SIDE_LINES; j++) weight[j] = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < FY_SIDE_LINES; j++)
                weight[j] += (side[i] ? 1 : -1) * (time[i * FY_SIDE_LINES + j] - mean[j]);
        count = 0;
        low = high = 0;
        for (int i = 0; i < n; i++) {
            double along = 0;
            for (int j = 0; j < FY_SIDE_LINES; j++) along += weight[j] * (time[i * FY_SIDE_LINES + j] - mean[j]);
            side[i] = along > 0;
            count += side[i];
            *(side[i] ? &high : &low) += along;
        }
    }
    if (count * 8 < n || (n - count) * 8 < n) goto unclear;
    high /= count;
    low /= n - count;
    for (int i = 0; i < n; i++) {
        double along = -(side[i] ? high : low);
        for (int j = 0; j < FY_SIDE_LINES; j++) along += weight[j] * (time[i * FY_SIDE_LINES + j] - mean[j]);
        within += along * along / n;
    }
    /* Clearly: the sides' middles are six deviations within a side apart. */
    if ((high - low) * (high - low) > 36 * within) return 1;
unclear:
    memset(side, 0, (size_t)n);
    return 0;
}

#endif
