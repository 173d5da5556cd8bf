/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, warps, blocks and the queue of those that are ready. */
#include "scheduler.h"

#include "coroutine.h"
#include "cuda_words.h"
#include "random.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <vector>

enum { MOST_LANES = 2048, WARP = 32, TURNS_WITHOUT_PROGRESS = 4000000, TURNS_OF_MORE = 512, STEPS_OF_A_TURN = 1000000 };

struct lane {
    coroutine way; /* kept from launch to launch: begins again only where a failure has left it in the middle */
    bool inside = false, ended = true, in_block_meeting = false;
    int thread = 0, block = 0, warp = 0;
    unsigned exchanges = 0;
};

/* Lanes that wait for the others of a mask. */
struct meeting {
    unsigned mask;
    const char *purpose;
    int come;
};

/* What a lane brings stays until it brings the next but one: by then all have read it. */
struct warp {
    int first_lane;
    uint64_t brought[2][WARP];
    std::vector<meeting> meetings;
};

struct block {
    int number, first_lane, left, come;
};

std::string failure;
uint64_t turns_run;

static std::vector<std::unique_ptr<lane>> lanes; /* those in use are the first ones */
static std::vector<warp> warps;
static std::vector<block> blocks;
static std::function<void()> role;
static int lanes_used, lanes_left, block_threads;
static int current, steps_of_turn;
static int ready[MOST_LANES], ready_first, ready_count; /* a ring */
static bool in_any_order;
static int way_percent, hold_percent, hold_turns;

void fail(const char *format, ...) {
    if (!failure.empty()) return;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    failure = text;
}

static void make_ready(int l) { ready[(ready_first + ready_count++) % MOST_LANES] = l; }

static int next_ready() {
    int &first = ready[ready_first];
    if (in_any_order) std::swap(first, ready[(ready_first + below(ready_count)) % MOST_LANES]);
    int l = first;
    ready_first = (ready_first + 1) % MOST_LANES;
    ready_count--;
    return l;
}

void rest() {
    make_ready(current);
    coroutine_leave();
}

void step() {
    if (++steps_of_turn > STEPS_OF_A_TURN) {
        fail("block %d, thread %d goes on and on", current_block(), lanes[current]->thread);
        rest();
    }
    if (way_percent > 0 && chance(way_percent)) rest();
}

void hold_for(int most) {
    for (uint64_t end = turns_run + draw() % (most + 1); turns_run < end;) rest();
}

void hold_up() {
    if (hold_percent > 0 && chance(hold_percent)) hold_for(hold_turns);
}

int current_block() { return blocks[lanes[current]->block].number; }

static void end_block_meeting(block &b) {
    b.come = 0;
    for (int l = b.first_lane; l < b.first_lane + block_threads; l++) {
        if (!lanes[l]->in_block_meeting) continue;
        lanes[l]->in_block_meeting = false;
        make_ready(l);
    }
}

void meet_block() {
    block &b = blocks[lanes[current]->block];
    if (++b.come == b.left) return end_block_meeting(b);
    lanes[current]->in_block_meeting = true;
    coroutine_leave();
}

void meet_warp(unsigned mask, const char *purpose) {
    warp &w = warps[lanes[current]->warp];
    int place = lanes[current]->thread % WARP;
    if (!(mask >> place & 1)) fail("%s: lane %d is not in its own mask %08x", purpose, place, mask);
    auto is_ours = [&](const meeting &m) { return m.mask == mask; };
    auto m = std::find_if(w.meetings.begin(), w.meetings.end(), is_ours);
    if (m == w.meetings.end()) m = w.meetings.insert(m, {mask, purpose, 0});
    if (m->purpose != purpose) fail("lanes of a warp meet, some in %s, some in %s", m->purpose, purpose);
    if (++m->come < __builtin_popcount(mask)) return coroutine_leave();
    w.meetings.erase(m);
    for (int i = 0; i < WARP; i++)
        if ((mask >> i & 1) && i != place) make_ready(w.first_lane + i);
}

const uint64_t *exchange(unsigned mask, uint64_t mine, const char *purpose) {
    if (mask != 0xffffffffu) fail("%s: mask %08x, whole warps are expected", purpose, mask);
    lane &l = *lanes[current];
    unsigned which = l.exchanges++ % 2;
    warps[l.warp].brought[which][l.thread % WARP] = mine;
    meet_warp(mask, purpose);
    return warps[l.warp].brought[which];
}

static void body_of_lane() {
    for (;;) {
        role();
        lane &l = *lanes[current];
        block &b = blocks[l.block];
        l.ended = true;
        l.inside = false;
        lanes_left--;
        if (--b.left > 0 && b.come == b.left) end_block_meeting(b);
        coroutine_leave();
    }
}

void begin_launch(int grid, int threads, const std::function<void()> &body) {
    role = body;
    gridDim.x = (unsigned)grid;
    blockDim.x = (unsigned)threads;
    block_threads = threads;
    lanes_used = lanes_left = ready_first = ready_count = 0;
    warps.clear();
    blocks.clear();
    in_any_order = chance(30);
    way_percent = chance(50) ? between(1, 40) : 0;
    hold_percent = chance(30) ? between(1, 30) : 0;
    hold_turns = between(1, 3000);
}

void begin_block(int number) {
    int first = lanes_used;
    blocks.push_back({number, first, block_threads, 0});
    for (int t = 0; t < block_threads; t++) {
        int index = lanes_used++;
        if ((int)lanes.size() <= index) lanes.emplace_back(new lane);
        lane &l = *lanes[index];
        if (l.inside || !l.way.stack) coroutine_prepare(l.way, body_of_lane);
        if (t % WARP == 0) warps.push_back({index, {}, {}});
        l.inside = l.ended = l.in_block_meeting = false;
        l.thread = t;
        l.block = (int)blocks.size() - 1;
        l.warp = (int)warps.size() - 1;
        l.exchanges = 0;
        make_ready(index);
    }
    lanes_left += block_threads;
}

int blocks_not_ended() {
    return (int)std::count_if(blocks.begin(), blocks.end(), [](const block &b) { return b.left > 0; });
}

static void judge_end() {
    int in_warps = 0;
    std::string purpose = "nothing";
    for (const warp &w : warps)
        for (const meeting &m : w.meetings) {
            in_warps += m.come;
            purpose = m.purpose;
        }
    fail("deadlock: %d lanes have not ended, %d of them wait for their warp in %s or the like", lanes_left, in_warps,
         purpose.c_str());
}

static void enter(int l) {
    current = l;
    steps_of_turn = 0;
    lanes[l]->inside = true;
    threadIdx.x = (unsigned)lanes[l]->thread;
    blockIdx.x = (unsigned)blocks[lanes[l]->block].number;
    coroutine_enter(lanes[l]->way);
}

void run_lanes(const std::function<bool(uint64_t *progress)> &more) {
    uint64_t seen = 0, since = turns_run;
    bool is_more = more != nullptr;
    int left = lanes_left;
    while (failure.empty()) {
        if (is_more && (turns_run % TURNS_OF_MORE == 0 || ready_count == 0)) {
            uint64_t progress = seen;
            is_more = more(&progress);
            if (progress != seen) since = turns_run;
            seen = progress;
        }
        if (lanes_left != left) since = turns_run;
        left = lanes_left;
        if (ready_count == 0 && lanes_left == 0 && !is_more) return;
        if (turns_run - since > TURNS_WITHOUT_PROGRESS) return fail("nobody gets on: %d lanes have not ended", left);
        turns_run++;
        if (ready_count > 0)
            enter(next_ready());
        else if (!is_more)
            judge_end();
    }
}

void launch(int grid, int threads, const std::function<void()> &body) {
    std::vector<int> order(grid);
    for (int i = 0; i < grid; i++) order[i] = i;
    shuffle(order);
    for (int number : order) {
        if (!failure.empty()) return;
        begin_launch(grid, threads, body);
        begin_block(number);
        run_lanes();
    }
}
