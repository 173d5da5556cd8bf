/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second-level cache of Hopper lies in two halves. A multiprocessor reads through the half that is near it; what
 * belongs to the other half crosses a link that is narrower than either, and is then in both. So what several tiles
 * read is left to multiprocessors of one side, where that can be: either columns, and with them weights, columns below
 * the middle to side 0, those above to side 1, of a column in the middle the first half of the rows to side 0; or whole
 * pieces, rows of one expert, and with them rows too, where one side is done with a piece before it has left the cache.
 */
#ifndef FERRY_RULES_SIDE_H
#define FERRY_RULES_SIDE_H

#include "rules/rule.h"

enum { FY_SIDES = 2, FY_SIDE_LINES = 16 };

/* Tiles that the multiprocessors of one side work on at once. */
enum { FY_SIDE_TILES = 64 };

/* Whether pieces of so many tiles, in all and on the average over `pieces`, are shared out whole. */
FY_RULE int fy_side_by_piece(int64_t tiles, int64_t pieces) { return tiles <= FY_SIDE_TILES * pieces; }

/* Tickets of a side for `rows` x `columns` tiles. */
FY_RULE int fy_side_tickets(int rows, int columns, int side) { return (rows * columns + 1 - side) / 2; }

typedef struct fy_side_tile {
    int row, column;
} fy_side_tile;

/*
 * Tile `at` of a piece that begins with row `low`, in `columns` columns from `first` on. Its rows come in equal groups
 * of at most `most`, and a group's tiles of one column follow each other: those who work at the same time then share
 * columns and rows in the second-level cache.
 */
FY_RULE fy_side_tile fy_side_in_groups(uint32_t at, int low, uint32_t rows, int first, uint32_t columns,
                                       uint32_t most) {
    uint32_t groups = (rows + most - 1) / most, size = (rows + groups - 1) / groups;
    uint32_t begin = at / (size * columns) * size;
    if (size > rows - begin) size = rows - begin;
    at -= begin * columns;
    fy_side_tile t = {low + (int)(begin + at % size), first + (int)(at / size)};
    return t;
}

/* By columns: the row of a ticket that is in the column in the middle, whose number is columns / 2; -1: it is in a
 * whole one. Those come first. */
FY_RULE int fy_side_middle_row(int rows, int columns, int side, int ticket) {
    int past = ticket - rows * (columns / 2);
    return past < 0 ? -1 : past + (side == 0 ? 0 : (rows + 1) / 2);
}

/* The tile of a ticket in a whole column; rows low .. high - 1 are the piece to which row ticket / (columns / 2)
 * belongs. */
FY_RULE fy_side_tile fy_side_whole(int ticket, int side, int columns, int low, int high, int most) {
    int whole = columns / 2;
    return fy_side_in_groups((uint32_t)(ticket - low * whole), low, (uint32_t)(high - low),
                             side == 0 ? 0 : columns - whole, (uint32_t)whole, (uint32_t)most);
}

/* By pieces: a side's ticket as a number among those of both. The first half of `tickets` is side 0's. */
FY_RULE int fy_side_number(int tickets, int side, int ticket) { return ticket + (side == 0 ? 0 : (tickets + 1) / 2); }

/*
 * The tile of a number. Rows low .. high - 1 are the piece to which row number / columns belongs. A piece in the middle
 * is cut column after column: what a side has of it are whole columns, which come first, and a part of one.
 */
FY_RULE fy_side_tile fy_side_of_piece(int number, int side, int tickets, int columns, int low, int high, int most) {
    uint32_t rows = (uint32_t)(high - low), all = rows * (uint32_t)columns;
    int half = (tickets + 1) / 2 - low * columns; /* tiles of the piece before side 1's */
    uint32_t from = side == 0 || half < 0 ? 0 : (uint32_t)half;
    uint32_t end = side == 0 && half < (int)all ? (uint32_t)half : all;
    uint32_t first = (from + rows - 1) / rows, whole = end / rows > first ? end / rows - first : 0;
    uint32_t at = (uint32_t)(number - low * columns) - from;
    if (at < whole * rows) return fy_side_in_groups(at, low, rows, (int)first, whole, (uint32_t)most);
    /* The cut column is side 0's last, side 1's first. */
    uint32_t place = side == 0 ? at : from + at - whole * rows;
    fy_side_tile t = {low + (int)(place % rows), (int)(place / rows)};
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
