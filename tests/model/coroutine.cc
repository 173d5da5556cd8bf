/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A coroutine's first entry is by makecontext, which gives it its stack; all later switches are by longjmp, which is
 * ten times faster as it leaves the signal mask alone. The C library's check that longjmp only goes up the stack must
 * be off here. AddressSanitizer is told of every switch; ThreadSanitizer cannot follow them, and there is but one
 * thread.
 */
#undef _FORTIFY_SOURCE
#include "coroutine.h"

#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__) /* gcc */
#define TOLD_OF_SWITCHES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) /* clang */
#define TOLD_OF_SWITCHES 1
#endif
#endif

#ifdef TOLD_OF_SWITCHES
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static void switch_begins(void **hidden, const void *bottom, size_t size) {
    __sanitizer_start_switch_fiber(hidden, bottom, size);
}
static void switch_ends(void *hidden, const void **bottom, size_t *size) {
    __sanitizer_finish_switch_fiber(hidden, bottom, size);
}
static void stack_is_new(const void *stack, size_t size) { __asan_unpoison_memory_region(stack, size); }
#else
static void switch_begins(void **, const void *, size_t) {}
static void switch_ends(void *, const void **, size_t *) {}
static void stack_is_new(const void *, size_t) {}
#endif

enum { STACK_BYTES = 128 << 10 };

static jmp_buf outside;
static coroutine *entered;
static const void *outside_bottom;
static size_t outside_size;

void coroutine_prepare(coroutine &c, void (*body)()) {
    if (!c.stack) c.stack.reset(new char[STACK_BYTES]);
    stack_is_new(c.stack.get(), STACK_BYTES);
    c.body = body;
    c.begun = false;
    c.hidden_stack = nullptr;
}

static void first_entry() {
    switch_ends(nullptr, &outside_bottom, &outside_size);
    entered->body();
}

static void begin(coroutine &c) {
    static ucontext_t context; /* not on the stack, which is left behind */
    getcontext(&context);
    context.uc_stack.ss_sp = c.stack.get();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, first_entry, 0);
    c.begun = true;
    setcontext(&context);
}

void coroutine_enter(coroutine &c) {
    static void *hidden;
    entered = &c;
    if (_setjmp(outside) == 0) {
        switch_begins(&hidden, c.stack.get(), STACK_BYTES);
        if (c.begun) _longjmp(c.inside, 1);
        begin(c);
    }
    switch_ends(hidden, nullptr, nullptr);
}

void coroutine_leave() {
    if (_setjmp(entered->inside) == 0) {
        switch_begins(&entered->hidden_stack, outside_bottom, outside_size);
        _longjmp(outside, 1);
    }
    switch_ends(entered->hidden_stack, nullptr, nullptr);
}
