/* SPDX-License-Identifier: Apache-2.0 */
/* Workers, their waits, and who runs next. */
#include "scheduler.h"

#include "coroutine.h"
#include "random.h"

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

struct worker {
    const char *name;
    int block, group;
    void (*body)(int block, int group);
    bool endless, ended;
    bool (*over)(const void *object, uint32_t value); /* NULL: it does not wait */
    const void *object;
    uint32_t value;
    const char *waits_for;
    uint64_t held_until, priority;
};

/* How the next worker is drawn. The last two: by priorities, of which now and then one or many change. */
enum manner { EVEN, BURSTS, ONE_CHANGE, MANY_CHANGES, MANNERS };

enum { PRIORITIES = 1000003, MOST_STEPS = 400000000 };

std::string failure;
bool verbose;
uint64_t steps_run;

static std::vector<worker> workers;
static std::vector<std::unique_ptr<coroutine>> coroutines; /* of each worker; kept from case to case for their stacks */
static int current;
static int hold_percent;    /* how often hold_up holds up */
static uint64_t hold_steps; /* for how long at most */

static std::string print(const char *format, va_list arguments) {
    char text[400];
    vsnprintf(text, sizeof text, format, arguments);
    return text;
}

void fail(const char *format, ...) {
    if (!failure.empty()) return;
    va_list arguments;
    va_start(arguments, format);
    failure = print(format, arguments);
    va_end(arguments);
}

void say(const char *format, ...) {
    if (!verbose) return;
    va_list arguments;
    va_start(arguments, format);
    std::string text = print(format, arguments);
    va_end(arguments);
    const worker &w = workers[current];
    printf("%8llu  %s %d.%d: %s\n", (unsigned long long)steps_run, w.name, w.block, w.group, text.c_str());
}

static void body_of_worker() {
    try {
        workers[current].body(workers[current].block, workers[current].group);
    } catch (const std::out_of_range &beyond) {
        fail("outside of a memory: %s", beyond.what());
    }
    workers[current].ended = true;
    for (;;) coroutine_leave();
}

void clear_workers() { workers.clear(); }

void add_worker(const char *name, int block, int group, void (*body)(int block, int group), bool endless) {
    workers.push_back({name, block, group, body, endless, false, nullptr, nullptr, 0, "", 0, draw() % PRIORITIES});
    if (coroutines.size() < workers.size()) coroutines.emplace_back(new coroutine);
    coroutine_prepare(*coroutines[workers.size() - 1], body_of_worker);
}

int current_block() { return workers[current].block; }

void step() { coroutine_leave(); }

void hold_up() {
    if (hold_percent > 0 && chance(hold_percent)) workers[current].held_until = steps_run + draw() % hold_steps;
}

void wait_until(bool (*over)(const void *object, uint32_t value), const void *object, uint32_t value,
                const char *what) {
    if (over(object, value)) return;
    worker &w = workers[current];
    w.over = over;
    w.object = object;
    w.value = value;
    w.waits_for = what;
    coroutine_leave();
    w.over = nullptr;
}

static bool can_run(const worker &w) {
    return !w.ended && w.held_until <= steps_run && (!w.over || w.over(w.object, w.value));
}

/* From a place that is drawn, the first that can run; -1: nobody. */
static int draw_worker() {
    int count = (int)workers.size(), from = below(count);
    for (int i = 0; i < count; i++) {
        int w = from + i < count ? from + i : from + i - count;
        if (can_run(workers[w])) return w;
    }
    return -1;
}

static int highest_worker() {
    int highest = -1;
    for (int w = 0; w < (int)workers.size(); w++)
        if ((highest < 0 || workers[w].priority > workers[highest].priority) && can_run(workers[w])) highest = w;
    return highest;
}

/* When the first one that is held up goes on; 0: nobody is. */
static uint64_t end_of_hold() {
    uint64_t first = 0;
    for (const worker &w : workers)
        if (!w.ended && w.held_until > steps_run && (first == 0 || w.held_until < first)) first = w.held_until;
    return first;
}

/* Nobody can go on: either all is done or it is a deadlock. */
static void judge_end() {
    std::string left;
    int count = 0;
    for (const worker &w : workers) {
        if (w.ended || w.endless) continue;
        count++;
        if (left.size() < 200)
            left += std::string(left.empty() ? "" : ", ") + w.name + " " + std::to_string(w.block) + "." +
                    std::to_string(w.group) + " for " + w.waits_for;
    }
    if (count > 0) fail("deadlock, %d workers wait: %s", count, left.c_str());
}

void run_workers(bool often) {
    int manner = below(MANNERS), burst = 0;
    hold_percent = often ? between(10, 70) : chance(50) ? between(1, 40) : 0;
    hold_steps = 2 + draw() % 100 * (draw() % 100) * 3;
    uint64_t change = 50 + below(3000);
    current = 0;
    for (steps_run = 0; failure.empty(); steps_run++) {
        int next;
        if (manner == BURSTS && burst > 0 && can_run(workers[current])) {
            next = current;
            burst--;
        } else if (manner == EVEN || manner == BURSTS) {
            next = draw_worker();
            burst = below(60);
        } else {
            if (steps_run % change == 0)
                for (int n = manner == ONE_CHANGE ? 1 : between(1, (int)workers.size()); n > 0; n--)
                    workers[below((int)workers.size())].priority = draw() % PRIORITIES;
            next = highest_worker();
        }
        if (next < 0) {
            uint64_t later = end_of_hold();
            if (later == 0) return judge_end();
            steps_run = later - 1;
            continue;
        }
        if (steps_run > MOST_STEPS) return fail("no end after %d steps", MOST_STEPS);
        current = next;
        coroutine_enter(*coroutines[current]);
    }
}
