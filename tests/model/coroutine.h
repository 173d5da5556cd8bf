/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coroutines with stacks of their own, so that device code runs as it is and gives way wherever it touches memory that
 * blocks share. One thread; a coroutine is entered from outside and leaves to there.
 */
#ifndef FERRY_MODEL_COROUTINE_H
#define FERRY_MODEL_COROUTINE_H

#include <csetjmp>
#include <memory>

struct coroutine {
    void (*body)() = nullptr; /* must not return */
    bool begun = false;
    jmp_buf inside;
    void *hidden_stack = nullptr; /* AddressSanitizer's */
    std::unique_ptr<char[]> stack;
};

void coroutine_prepare(coroutine &c, void (*body)()); /* also over an unfinished one */
void coroutine_enter(coroutine &c);                   /* until it leaves */
void coroutine_leave();                               /* of the entered one */

#endif
