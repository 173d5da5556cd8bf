/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warp of each block chooses tiles (role_choose.cuh), one more thread begins them, sooner or later, as the loading
 * thread. What tiles wait for is made by nobody here: counters rise by and by, more or less in the order of the walk,
 * or rise no more because the call is aborted; then all end.
 */
#include "checks.h"

#include "cuda/role_choose.cuh"
#include "cuda/role_load.cuh"
#include "random.h"
#include "scheduler.h"

#include <algorithm>

enum { MOST_GRID = 6, LOADING_THREAD = 32, LONGEST_HOLD = 40 };

/* A counter counts so much more. */
struct rise {
    uint32_t *counter, by;
    int turn;
};

static std::vector<rise> rises;         /* the next one last */
static std::vector<int> chosen[FY_END]; /* of each kind: how often each column tile of each row tile is */
static uint32_t chosen_in_all;
static uint32_t answered[MOST_GRID]; /* looks at the posts */
static uint8_t side[FY_GPU_MAX_SMS];
alignas(1024) static uint8_t memory_of_block[MOST_GRID][FY_SHARED_BYTES];

static int row_tiles(const made_up_rank &q, int kind) {
    if (!fy_is_shared(kind)) return q.state.tiles;
    return q.call.shared > 0 ? (q.tokens + FY_TILE_M - 1) / FY_TILE_M : 0;
}

/* Column tiles of h, and of y. */
static int columns_made(const made_up_rank &q, bool shared) {
    return ((shared ? q.call.shared : q.call.intermediate) + FY_HALF_N - 1) / FY_HALF_N;
}
static int columns_sent(const made_up_rank &q) { return (q.call.hidden + FY_TILE_N - 1) / FY_TILE_N; }

static void add_rises(uint32_t &counter, int all, int turn, int window) {
    int first = between(0, all);
    for (int by : {first, all - first}) rises.push_back({&counter, (uint32_t)by, turn + below(window)});
}

/* Some results are sent long after others have been made. */
static void draw_rises(made_up_rank &q) {
    int window = chance(50) ? between(1, 8) : q.state.tiles + 1, late = chance(50) ? below(q.state.tiles + 1) : 0;
    rises.clear();
    for (int t = 0; t < q.state.tiles; t++)
        for (int row = q.tile[t].row; row < q.tile[t].row + q.tile[t].rows; row += FY_BLOCK_ROWS) {
            int b = row / FY_BLOCK_ROWS;
            add_rises(q.pulled[b], FY_BLOCK_ROWS, t, window);
            add_rises(q.made[b], columns_made(q, false), t, window);
            add_rises(q.sent[b], columns_sent(q), t + late, window);
        }
    for (int t = 0; q.call.shared > 0 && t < q.tokens; t += FY_BLOCK_ROWS)
        add_rises(q.made[q.call.max_blocks + t / FY_BLOCK_ROWS], columns_made(q, true), 0, window);
    shuffle(rises);
    std::stable_sort(rises.begin(), rises.end(), [](const rise &a, const rise &b) { return a.turn > b.turn; });
}

/* Row tile of a description; -1: none. */
static int tile_of(const made_up_rank &q, const fy_work &w) {
    for (int t = 0; t < row_tiles(q, w.kind); t++)
        if (w.row == (fy_is_shared(w.kind) ? t * FY_TILE_M : q.tile[t].row)) return t;
    return -1;
}

/* Tiles of the same piece before tile `t` in its step. */
static int tiles_before(const made_up_rank &q, int kind, int t) {
    const fy_gpu_unit *unit = q.unit.data();
    while (unit->kind != kind || t < unit->first_tile || t >= unit->first_tile + unit->tiles) unit++;
    int before = 0;
    for (int s = unit->first_tile; s < t; s++) before += q.tile[s].piece_first == q.tile[t].piece_first;
    return before;
}

static fy_work expected_work(const made_up_rank &q, int kind, int t, int column) {
    const fy_gpu_call &c = q.call;
    bool make = kind == FY_MAKE || kind == FY_SHARED_MAKE;
    fy_work e = {};
    e.kind = kind;
    e.column = column;
    if (fy_is_shared(kind)) {
        e.row = e.load_row = t * FY_TILE_M;
        e.rows = min((int)FY_TILE_M, q.tokens - e.row);
        e.counter = c.max_blocks + e.row / FY_BLOCK_ROWS;
        e.depth = ((make ? c.hidden : c.shared) + FY_TILE_K - 1) / FY_TILE_K;
    } else {
        e.row = q.tile[t].row;
        e.rows = q.tile[t].rows;
        e.load_row = e.row % (c.ring_blocks * FY_BLOCK_ROWS);
        e.counter = e.row / FY_BLOCK_ROWS;
        e.matrix = q.tile[t].expert;
        e.depth = ((make ? c.hidden : c.intermediate) + FY_TILE_K - 1) / FY_TILE_K;
        e.behind = tiles_before(q, kind, t);
    }
    return e;
}

static std::string words_of(const fy_work &w) {
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"row", w.row},         {"rows", w.rows},     {"column", w.column}, {"load row", w.load_row},
                   {"counter", w.counter}, {"matrix", w.matrix}, {"depth", w.depth},   {"behind", w.behind}};
    std::string text = "kind " + std::to_string(w.kind);
    for (const auto &n : numbers) text += number_in_words(n.name, n.value);
    return text;
}

/* What block `b`, of rows or tokens, must be before a tile of `kind` may run. */
static bool is_there(const made_up_rank &q, int kind, int b) {
    int before = b + q.call.ring_blocks; /* in the same place of the ring */
    if (kind == FY_SHARED_MAKE) return true;
    if (kind != FY_MAKE) return (int)q.made[b] == columns_made(q, fy_is_shared(kind));
    return q.pulled[b] == FY_BLOCK_ROWS && (before >= q.state.blocks || (int)q.sent[before] == columns_sent(q));
}

static bool may_wait_at(int kind, int site) {
    if (kind == FY_MAKE) return site == FY_AT_PULLED || site == FY_AT_MADE_SPACE;
    return kind != FY_SHARED_MAKE && site == FY_AT_MADE;
}

static void check_work(const made_up_rank &q, const fy_work &w) {
    int columns = fy_is_make(w.kind) ? columns_made(q, fy_is_shared(w.kind)) : columns_sent(q), t = tile_of(q, w);
    bool exists = w.kind >= 0 && w.kind < FY_END && t >= 0 && w.column >= 0 && w.column < columns;
    CHECK(exists, q.call.rank, "there is no such tile: %s", words_of(w).c_str());
    fy_work e = expected_work(q, w.kind, t, w.column);
    e.site = w.site;
    CHECK(memcmp(&w, &e, sizeof w) == 0, q.call.rank, "a tile is %s, not %s", words_of(w).c_str(), words_of(e).c_str());
    CHECK(chosen[w.kind][t * columns + w.column]++ == 0, q.call.rank, "once more: %s", words_of(w).c_str());
    chosen_in_all++;
    for (int row = 0; row < w.rows; row += FY_BLOCK_ROWS)
        CHECK(is_there(q, w.kind, w.counter + row / FY_BLOCK_ROWS), q.call.rank, "before its row %d may be used: %s",
              row, words_of(w).c_str());
    CHECK(w.site == 0 || may_wait_at(w.kind, w.site), q.call.rank, "site %d: %s", w.site, words_of(w).c_str());
}

/* Of fy_load_role what concerns the choice; the first stage is free now, or later. */
static void begin_tiles(const made_up_rank &q, fy_block *block, const uint32_t &answers) {
    uint32_t before = 0;
    for (int number = 0;; number++) {
        fy_work w = fy_next_tile(block, number);
        if (w.kind == FY_END) return;
        if (failure.empty()) check_work(q, w);
        CHECK(w.site == 0 || answers != before, q.call.rank, "no look at posts: %s", words_of(w).c_str());
        before = answers;
        for (int n = chance(20) ? below(LONGEST_HOLD) : 0; n >= 0; n--) {
            CHECK(!barrier_is_over(&block->chosen, (number + 1) & 1), q.call.rank, "chosen before tile %d begins",
                  number);
            if (n > 0) rest();
        }
        fy_barrier_arrive(&block->begun);
    }
}

static bool answer(uint32_t &answers) {
    bool had_post = lane_number() == 0 && chance(50);
    if (lane_number() == 0) answers++;
    return __any_sync(0xffffffffu, had_post);
}

static void run_thread(const made_up_rank &q) {
    int b = current_block();
    uint8_t *memory = memory_of_block[b];
    if (threadIdx.x == LOADING_THREAD) return begin_tiles(q, fy_block_of(memory), answered[b]);
    fy_choose_role(q.call, memory, [b] { return answer(answered[b]); });
}

static void begin_choosing(int number) {
    fy_block *block = fy_block_of(memory_of_block[number]);
    memset(block, UNTOUCHED, sizeof *block);
    fy_open_choice(&block->chosen, &block->begun);
    answered[number] = 0;
    begin_block(number);
}

/* `ends_with`: so many rises are left when the call is aborted, and do not come; -1: it is not. */
static void run_blocks(made_up_rank &q, int ends_with) {
    int grid = between(1, MOST_GRID), resident = between(1, grid), begun = 0;
    uint32_t *abort = (uint32_t *)q.at(q.call.at.abort);
    int burst = chance(20) ? 1000 : between(1, 20);
    begin_launch(grid, LOADING_THREAD + 1, [&] { run_thread(q); });
    run_lanes([&](uint64_t *progress) {
        for (int n = below(burst + 1); n > 0 && !rises.empty(); n--) {
            *rises.back().counter += rises.back().by;
            rises.pop_back();
        }
        if ((int)rises.size() <= ends_with) {
            *abort = 1;
            rises.clear();
        }
        while (begun < grid && blocks_not_ended() < resident) begin_choosing(begun++);
        *progress = rises.size() + ((uint64_t)chosen_in_all << 32);
        return !rises.empty() || begun < grid;
    });
    *abort = 0;
}

static void check_all_chosen(const made_up_rank &q) {
    for (const std::vector<int> &of_kind : chosen)
        for (int i = 0; i < (int)of_kind.size(); i++)
            CHECK(of_kind[i] == 1, q.call.rank, "tile %d of kind %d is never chosen", i, (int)(&of_kind - chosen));
}

void run_choice(made_up_rank &q) {
    std::vector<uint32_t> pulled = q.pulled, made = q.made, sent = q.sent;
    for (uint8_t &s : side) s = (uint8_t)below(FY_SIDES);
    q.call.table.side = side;
    for (int kind = 0; kind < FY_END; kind++) chosen[kind].assign(row_tiles(q, kind) * fy_columns_of(q.call, kind), 0);
    chosen_in_all = 0;
    draw_rises(q);
    int ends_with = chance(15) ? below((int)rises.size() + 1) : -1;
    run_blocks(q, ends_with);
    if (failure.empty() && ends_with < 0) check_all_chosen(q);
    std::copy(pulled.begin(), pulled.end(), q.pulled.begin());
    std::copy(made.begin(), made.end(), q.made.begin());
    std::copy(sent.begin(), sent.end(), q.sent.begin());
    memset(q.state.take_product, 0, sizeof q.state.take_product);
}
