/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/wait.cuh: a wait costs no turns, and no call is aborted. One that never ends is a deadlock, which
 * the scheduler reports. */
#ifndef FERRY_CUDA_WAIT_CUH
#define FERRY_CUDA_WAIT_CUH

#include "cuda/call.h"
#include "cuda/prim_memory.cuh"

FY_DEVICE bool flag_is_up(const void *flag, uint32_t target) { return *(const uint32_t *)flag >= target; }

FY_DEVICE const char *name_of_site(int site) {
    switch (site) {
    case FY_AT_PULL_SPACE:
        return "made[] (room for x in the ring)";
    case FY_AT_PULLED:
        return "pulled[]";
    case FY_AT_MADE_SPACE:
        return "sent[] (room for h in the ring)";
    case FY_AT_MADE:
        return "made[]";
    case FY_AT_BACKWARD_SPACE:
        return "room in the ring";
    case FY_AT_REMADE:
        return "remade[]";
    case FY_AT_GRADED:
        return "gradients of h";
    case FY_AT_TURN:
        return "turn[]";
    default:
        return "a flag";
    }
}

template <bool SYSTEM>
FY_DEVICE bool fy_await(const fy_gpu_call &, const uint32_t *flag, uint32_t target, int site, int, uint64_t) {
    step();
    if (!flag_is_up(flag, target)) say("waits for %s: %u, wanted %u", name_of_site(site), *flag, target);
    wait_until(flag_is_up, flag, target, name_of_site(site));
    return true;
}

FY_DEVICE bool fy_gives_up(const fy_gpu_call &, int, int, uint32_t, uint32_t, uint64_t, uint64_t) {
    not_for_one_thread();
}
FY_DEVICE void fy_device_raise(const fy_gpu_call &, int, int, uint64_t, uint64_t) { not_for_one_thread(); }

#endif
