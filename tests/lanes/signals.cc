/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two warpgroups post column tiles of h and y, one warp answers (role_signal.cuh). In place of values each post has a
 * number, which its warpgroup leaves in its buffer and the copy engine finds there. A block's column tiles go to both
 * warpgroups, which in the forward only those of different multiprocessors do.
 */
#include "checks.h"

#include "cuda/role_product.cuh"
#include "cuda/role_signal.cuh"
#include "random.h"

enum {
    GROUP_THREADS = 128,
    SIGNALLING_WARP = 2 * GROUP_THREADS / 32,
    ENGINE_THREAD = 32 * (SIGNALLING_WARP + 1),
    MOST_BLOCKS = 3, /* of each kind */
    PIECES = 2
};

struct trial {
    fy_post post;
    int parts; /* that are stored: pieces of h, or threads' of y */
};

static std::vector<trial> trials;
static std::vector<int> of_group[2];     /* numbers of posts in their order */
static std::vector<uint32_t> made, sent; /* what the counters may be: tiles that are stored */
/* Of each rank: what it was before, and what it shall be. */
static std::vector<uint32_t> arrived[FY_GPU_MAX_RANKS], told[FY_GPU_MAX_RANKS];
static int most_work, most_copy; /* turns of a tile and of a copy */
static bool signals_ended;
alignas(1024) static uint8_t memory_of_block[FY_SHARED_BYTES];

static bool is_make(const fy_post &p) { return fy_is_make(p.kind); }

/* The warpgroups' shares of a tile of the kind, column by column. */
static void add_tiles(const fy_gpu_call &c, fy_post p) {
    int columns = fy_columns_of(c, p.kind), left_out = chance(25) ? below(columns) : -1;
    for (p.column = 0; p.column < columns; p.column++)
        if (p.column != left_out) trials.push_back({p, 0});
}

/* Blocks of rows as tiles have them, kind and column still open. */
static std::vector<fy_post> blocks_of(const made_up_rank &q, bool shared) {
    const fy_gpu_call &c = q.call;
    std::vector<fy_post> blocks;
    auto add = [&](int counter, int row, int rows) {
        for (int r = 0; r < rows; r += FY_BLOCK_ROWS, counter++) {
            int load_row = shared ? row + r : counter % c.ring_blocks * FY_BLOCK_ROWS;
            blocks.push_back({0, 0, load_row, counter, row + r, min(rows - r, (int)FY_BLOCK_ROWS)});
        }
    };
    if (shared && c.shared > 0) add(c.max_blocks, 0, q.tokens);
    for (int t = 0; !shared && t < q.state.tiles; t++)
        add(q.tile[t].row / FY_BLOCK_ROWS, q.tile[t].row, q.tile[t].rows);
    return blocks;
}

static void draw_posts(const made_up_rank &q) {
    trials.clear();
    for (int kind : {FY_SHARED_MAKE, FY_SHARED_FINISH, FY_MAKE, FY_FINISH}) {
        std::vector<fy_post> blocks = blocks_of(q, fy_is_shared(kind));
        shuffle(blocks);
        blocks.resize(min((int)blocks.size(), below(MOST_BLOCKS + 1)));
        for (fy_post &p : blocks) {
            p.kind = kind;
            add_tiles(q.call, p);
        }
    }
    shuffle(trials);
    int share = chance(20) ? 100 * below(2) : 50;
    for (std::vector<int> &numbers : of_group) numbers.clear();
    for (int i = 0; i < (int)trials.size(); i++) of_group[chance(share)].push_back(i);
    most_work = chance(50) ? between(0, 2000) : 0;
    most_copy = chance(50) ? between(0, 2000) : 0;
}

/* One more part of a post is in memory. Nobody may have been told of the whole before. */
static void note_stored(const made_up_rank &q, int number) {
    trial &t = trials[number];
    const fy_post &p = t.post;
    bool make = is_make(p);
    uint32_t counted = (make ? q.made : q.sent)[p.counter], &whole = (make ? made : sent)[p.counter];
    CHECK(counted <= whole, q.call.rank, "block %d: kind %d, %u tiles are told, %u stored", p.counter, p.kind, counted,
          whole);
    t.parts++;
    if (t.parts == (make ? PIECES : GROUP_THREADS)) whole++;
    CHECK(t.parts <= (make ? PIECES : GROUP_THREADS), q.call.rank, "block %d: kind %d, column tile %d is stored twice",
          p.counter, p.kind, p.column);
}

/* Where a thread leaves a post's number: in both pieces, of which each has its own. */
static int *mark_at(const uint8_t *piece, int thread) { return (int *)piece + thread * 16; }

/* Its tile is in the buffer, as h or on its way to y. */
static void stage(uint8_t *buffer, int number, int thread) {
    for (int piece = 0; piece < PIECES; piece++) {
        step();
        *mark_at(buffer + piece * FY_PIECE_BYTES, thread) = number * PIECES + piece;
    }
}

/* A warpgroup of consumers, of fy_product_role what concerns posts. */
static void consume(made_up_rank &q, int group) {
    fy_block *block = fy_block_of(memory_of_block);
    int thread = (int)threadIdx.x & 127;
    uint32_t posts = 0;
    for (int number : of_group[group]) {
        const fy_post &p = trials[number].post;
        if (lane_number() == 0) hold_for(most_work);
        __syncwarp();
        fy_await_taken(block, group, posts);
        stage(fy_group_buffer(memory_of_block, group), number, thread);
        if (!is_make(p)) note_stored(q, number);
        fy_post_tile(block, p, group, thread);
        posts++;
    }
    fy_await_taken(block, group, posts);
    fy_post_tile(block, {FY_END, 0, 0, 0, 0, 0}, group, thread);
}

static int read_piece(const made_up_rank &q, const box_store &s) {
    int tag = *mark_at(s.from, 0), number = tag / PIECES, piece = tag % PIECES;
    bool whole = tag >= 0;
    for (int thread = 0; thread < GROUP_THREADS; thread++) whole &= *mark_at(s.from, thread) == tag;
    if (!whole) {
        fail("rank %d: to row %d, column %d of h goes a buffer half written", q.call.rank, s.row, s.column);
        return 0;
    }
    const fy_post &p = trials[number].post;
    const CUtensorMap *map = p.kind == FY_MAKE ? &q.call.routed.h_short : &q.call.shared_expert.h_short;
    if (!is_make(p) || map != s.map || s.column != p.column * FY_HALF_N + piece * 64 || s.row != p.load_row)
        fail("rank %d: to row %d, column %d of h goes piece %d of row %d, column tile %d, kind %d", q.call.rank, s.row,
             s.column, piece, p.load_row, p.column, p.kind);
    return tag;
}

/* Reads and writes in any order. */
static void copy(const made_up_rank &q) {
    while (!signals_ended || !stores_under_way.empty()) {
        rest();
        if (stores_under_way.empty()) continue;
        hold_for(most_copy);
        int i = below((int)stores_under_way.size());
        box_store &s = stores_under_way[i];
        if (s.tag < 0) {
            s.tag = read_piece(q, s);
            continue;
        }
        note_stored(q, s.tag / PIECES);
        stores_under_way.erase(stores_under_way.begin() + i);
    }
}

static void run_thread(made_up_rank &q) {
    int thread = (int)threadIdx.x;
    if (thread == ENGINE_THREAD) return copy(q);
    if (thread / 32 < SIGNALLING_WARP) return consume(q, thread / GROUP_THREADS);
    fy_signals signals = {3, 0};
    fy_signal_role(q.call, memory_of_block, signals);
    signals_ended = true;
}

static void run_block(made_up_rank &q) {
    shared_memory = memory_of_block;
    memset(fy_group_buffer(memory_of_block, 0), UNTOUCHED, 2 * FY_GROUP_BYTES);
    fy_open_posts(fy_block_of(memory_of_block));
    stores_under_way.clear();
    signals_ended = false;
    begin_launch(1, ENGINE_THREAD + 1, [&q] { run_thread(q); });
    begin_block(0);
    run_lanes();
}

/* Of each block whose column tiles of y are all posted every row is told to its owner. */
static void expect_arrivals(const made_up_rank &q) {
    std::vector<uint32_t> left(q.sent.size(), (uint32_t)fy_columns_of(q.call, FY_FINISH));
    for (const trial &t : trials) {
        const fy_post &p = t.post;
        if (is_make(p) || --left[p.counter] > 0) continue;
        for (int row = p.row; row < p.row + p.rows; row++) {
            bool shared = fy_is_shared(p.kind);
            told[shared ? q.call.rank : q.source[row].rank][shared ? row : q.source[row].slot / layer.slots]++;
        }
    }
}

static void check_counters(const made_up_rank &q) {
    for (const trial &t : trials)
        CHECK(t.parts == (is_make(t.post) ? PIECES : GROUP_THREADS), q.call.rank, "block %d: %d parts of kind %d",
              t.post.counter, t.parts, t.post.kind);
    for (size_t b = 0; b < made.size(); b++)
        CHECK(q.made[b] == made[b] && q.sent[b] == sent[b], q.call.rank, "block %d: %u are made, %u sent, not %u, %u",
              (int)b, q.made[b], q.sent[b], made[b], sent[b]);
    for (int r = 0; r < layer.ranks; r++)
        for (int t = 0; t < layer.max_tokens; t++) {
            uint32_t seen = ((const uint32_t *)layer.rank[r].at(q.call.at.arrived))[t];
            CHECK(seen == told[r][t], q.call.rank, "token %d of rank %d is told %d times, not %d", t, r,
                  (int)(seen - arrived[r][t]), (int)(told[r][t] - arrived[r][t]));
        }
}

void run_signals(made_up_rank &q) {
    draw_posts(q);
    made = q.made;
    sent = q.sent;
    for (int r = 0; r < layer.ranks; r++) {
        const uint32_t *at = (const uint32_t *)layer.rank[r].at(q.call.at.arrived);
        arrived[r].assign(at, at + layer.max_tokens);
        told[r] = arrived[r];
    }
    expect_arrivals(q);
    run_block(q);
    if (failure.empty()) check_counters(q);
    for (int r = 0; r < layer.ranks; r++)
        std::copy(arrived[r].begin(), arrived[r].end(), (uint32_t *)layer.rank[r].at(q.call.at.arrived));
}
