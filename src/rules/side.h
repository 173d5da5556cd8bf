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

typedef struct fy_side_tile {
    int row, column;
} fy_side_tile;

/*
 * The tile of a ticket in a whole column. Rows low .. high - 1 are a piece, to which the ticket's row
 * ticket / (columns / 2) belongs. They come in equal groups of at most `most`, and a group's tiles of one column follow
 * each other: those who work at the same time then share columns and rows in the second-level cache.
 */
FY_RULE fy_side_tile fy_side_whole(int ticket, int side, int columns, int low, int high, int most) {
    uint32_t whole = (uint32_t)columns / 2, rows = (uint32_t)(high - low),
             groups = (rows + (uint32_t)most - 1) / (uint32_t)most;
    uint32_t size = (rows + groups - 1) / groups, at = (uint32_t)ticket - (uint32_t)low * whole;
    uint32_t begin = at / (size * whole) * size;
    if (size > rows - begin) size = rows - begin;
    at -= begin * whole;
    fy_side_tile t = {low + (int)(begin + at % size), fy_side_first(columns, side) + (int)(at / size)};
    return t;
}

/* How far a multiprocessor's times lie along `weight`. */
static inline double fy_side_along(const float *time, const double *mean, const double *weight) {
    double along = 0;
    for (int j = 0; j < FY_SIDE_LINES; j++) along += weight[j] * (time[j] - mean[j]);
    return along;
}

/*
 * On which side each of n multiprocessors is, from the time that an access to each of FY_SIDE_LINES lines of memory
 * takes it, whose owners are near or far: side[] becomes 0 and 1 by the sign of the strongest common pattern. 1, or 0
 * and all zeros where the two sides do not stand clearly apart.
 */
static inline int fy_split_sides(const float *time, int n, uint8_t *side) {
    double mean[FY_SIDE_LINES] = {0}, weight[FY_SIDE_LINES], middle[FY_SIDES], within = 0;
    int count[FY_SIDES];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < FY_SIDE_LINES; j++) mean[j] += time[i * FY_SIDE_LINES + j] / (double)n;
    for (int i = 0; i < n; i++) side[i] = time[i * FY_SIDE_LINES] > mean[0];
    for (int turn = 0; turn < 8; turn++) {
        for (int j = 0; j < FY_SIDE_LINES; j++) {
            weight[j] = 0;
            for (int i = 0; i < n; i++) weight[j] += (side[i] ? 1 : -1) * (time[i * FY_SIDE_LINES + j] - mean[j]);
        }
        for (int i = 0; i < n; i++) side[i] = fy_side_along(time + i * FY_SIDE_LINES, mean, weight) > 0;
    }
    for (int s = 0; s < FY_SIDES; s++) {
        count[s] = 0;
        middle[s] = 0;
        for (int i = 0; i < n; i++) {
            if (side[i] != s) continue;
            count[s]++;
            middle[s] += fy_side_along(time + i * FY_SIDE_LINES, mean, weight);
        }
        middle[s] /= count[s] ? count[s] : 1;
    }
    for (int i = 0; i < n; i++) {
        double apart = fy_side_along(time + i * FY_SIDE_LINES, mean, weight) - middle[side[i]];
        within += apart * apart / n;
    }
    /* Clearly: neither is a few alone, and their middles are six deviations within a side apart. */
    double between = middle[1] - middle[0];
    int clear = count[0] * 8 >= n && count[1] * 8 >= n && between * between > 36 * within;
    if (!clear) memset(side, 0, (size_t)n);
    return clear;
}

#endif
