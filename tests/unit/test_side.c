/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of the two sides of the cache, and sides told from times (rules/side.h). */
#include "rules/side.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SMS = 132, NEAR = 350, FAR = 545 };

static float times[SMS * FY_SIDE_LINES];
static uint8_t side[SMS];

/* Multiprocessors [first, end) are on the one side; odd lines belong to it; ways within a side differ by up to 60. */
static void measure(int first, int end, int far) {
    uint32_t noise = 1;
    for (int i = 0; i < SMS; i++)
        for (int j = 0; j < FY_SIDE_LINES; j++) {
            int here = i >= first && i < end;
            noise = noise * 1664525u + 1013904223u;
            times[i * FY_SIDE_LINES + j] =
                (float)(here == j % 2 ? NEAR : far) + (float)(i % 4) * 15 + (float)(noise >> 28);
        }
}

enum { ROWS = 23, COLUMNS = 9 };

/* The tile of a ticket where pieces begin at every row that `cuts` names; `*piece`: its first row. */
static fy_side_tile tile_of(int ticket, int of, int rows, int columns, uint32_t cuts, int most, int by_piece,
                            int *piece) {
    fy_side_tile t = {fy_side_middle_row(rows, columns, of, ticket), columns / 2};
    *piece = 0;
    if (!by_piece && t.row >= 0) return t;
    int tickets = rows * columns, number = fy_side_number(tickets, of, ticket);
    int low = by_piece ? number / columns : ticket / (columns / 2), high = low + 1;
    while (low > 0 && !(cuts >> low & 1)) low--;
    while (high < rows && !(cuts >> high & 1)) high++;
    t = by_piece ? fy_side_of_piece(number, of, tickets, columns, low, high, most)
                 : fy_side_whole(ticket, of, columns, low, high, most);
    assert_in_range(t.row, low, high - 1);
    *piece = by_piece ? low : 0;
    return t;
}

/* Every tile is a ticket of one side, and the sides have as many to within one. Both have tiles of one column at most,
 * the one in the middle, or of a piece. */
static void check_tiles(int rows, int columns, uint32_t cuts, int most, int by_piece) {
    int tickets[ROWS][COLUMNS] = {{0}}, owner[ROWS][COLUMNS] = {{0}}, each[FY_SIDES], shared = 0;
    for (int s = 0; s < FY_SIDES; s++) {
        each[s] = fy_side_tickets(rows, columns, s);
        for (int ticket = 0; ticket < each[s]; ticket++) {
            int piece;
            fy_side_tile t = tile_of(ticket, s, rows, columns, cuts, most, by_piece, &piece);
            assert_in_range(t.row, 0, rows - 1);
            assert_in_range(t.column, 0, columns - 1);
            tickets[t.row][t.column]++;
            owner[piece][t.column] |= 1 << s;
        }
    }
    assert_int_equal(each[0] + each[1], rows * columns);
    assert_in_range(each[0] - each[1], 0, 1);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++) {
            assert_int_equal(tickets[row][column], 1);
            if (owner[row][column] == 3) shared++;
            if (owner[row][column] == 3 && !by_piece) assert_true(columns % 2 && column == columns / 2);
        }
    assert_in_range(shared, 0, 1);
}

static void test_tiles_are_shared_out(void **state) {
    (void)state;
    const uint32_t cuts[] = {0, 1u << 5, 0x124924, 0x7fffff, 1u << 20 | 1u << 3};
    for (int rows = 0; rows <= ROWS; rows++)
        for (int columns = 0; columns <= COLUMNS; columns++)
            for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
                for (int most = 1; most <= 16; most += 5)
                    for (int by_piece = 0; by_piece < 2; by_piece++)
                        check_tiles(rows, columns, cuts[i], most, by_piece);
}

/* Of one piece of five rows and four columns side 1 has the last two columns. In groups of at most four rows these are
 * three and two; a group's tiles of a column follow each other. */
static void test_groups_share_a_column(void **state) {
    (void)state;
    const int expected[][2] = {{0, 2}, {1, 2}, {2, 2}, {0, 3}, {1, 3}, {2, 3}, {3, 2}, {4, 2}, {3, 3}, {4, 3}};
    for (int by_piece = 0; by_piece < 2; by_piece++)
        for (int ticket = 0; ticket < 10; ticket++) {
            int piece;
            fy_side_tile t = tile_of(ticket, 1, 5, 4, 0, 4, by_piece, &piece);
            assert_int_equal(t.row, expected[ticket][0]);
            assert_int_equal(t.column, expected[ticket][1]);
        }
}

/* Of pieces of two, three and two rows with three columns side 0 has all of the first one, one column of the second
 * one and two tiles of the next column; side 1 first what it has in whole columns. */
static void test_a_piece_is_cut(void **state) {
    (void)state;
    const uint32_t cuts = 1u << 2 | 1u << 5;
    const int expected[2][11][2] = {
        {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}, {2, 0}, {3, 0}, {4, 0}, {2, 1}, {3, 1}},
        {{2, 2}, {3, 2}, {4, 2}, {4, 1}, {5, 0}, {6, 0}, {5, 1}, {6, 1}, {5, 2}, {6, 2}},
    };
    for (int s = 0; s < FY_SIDES; s++)
        for (int ticket = 0; ticket < fy_side_tickets(7, 3, s); ticket++) {
            int piece;
            fy_side_tile t = tile_of(ticket, s, 7, 3, cuts, 16, 1, &piece);
            assert_int_equal(t.row, expected[s][ticket][0]);
            assert_int_equal(t.column, expected[s][ticket][1]);
        }
}

/* 64 experts of 1,024 rows: eight tiles each, in eight columns; one row tile more. */
static void test_small_pieces_are_not_cut(void **state) {
    (void)state;
    assert_true(fy_side_by_piece(64 * 8 * 8, 64));
    assert_false(fy_side_by_piece((64 * 8 + 1) * 8, 64));
}

static void test_two_sides(void **state) {
    (void)state;
    const int cut[][2] = {{0, 66}, {1, 67}, {40, 110}, {100, 132}, {0, 20}};
    for (size_t k = 0; k < sizeof cut / sizeof cut[0]; k++) {
        memset(side, 7, sizeof side);
        measure(cut[k][0], cut[k][1], FAR);
        assert_int_equal(fy_split_sides(times, SMS, side), 1);
        for (int i = 0; i < SMS; i++) {
            int with_first = (i >= cut[k][0] && i < cut[k][1]) == (cut[k][0] == 0);
            assert_int_equal(side[i] == side[0], with_first);
        }
    }
}

static void test_no_two_sides(void **state) {
    (void)state;
    memset(side, 7, sizeof side);
    measure(0, 66, NEAR); /* all are as near */
    assert_int_equal(fy_split_sides(times, SMS, side), 0);
    for (int i = 0; i < SMS; i++) assert_int_equal(side[i], 0);
    measure(0, 3, FAR); /* three that are slow are no side */
    assert_int_equal(fy_split_sides(times, SMS, side), 0);
    assert_int_equal(fy_split_sides(times, 1, side), 0);
    assert_int_equal(fy_split_sides(times, 0, side), 0);
    assert_int_equal(side[0], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_are_shared_out),
        cmocka_unit_test(test_groups_share_a_column),
        cmocka_unit_test(test_a_piece_is_cut),
        cmocka_unit_test(test_small_pieces_are_not_cut),
        cmocka_unit_test(test_two_sides),
        cmocka_unit_test(test_no_two_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
