/* SPDX-License-Identifier: Apache-2.0 */
/* What tickets make, in words. */
#ifndef FERRY_MODEL_KINDS_H
#define FERRY_MODEL_KINDS_H

#include "cuda/backward.h"
#include "cuda/call.h"

inline const char *name_of_kind(int kind) {
    switch (kind) {
    case FY_SHARED_MAKE:
        return "shared make";
    case FY_SHARED_FINISH:
        return "shared finish";
    case FY_MAKE:
        return "make";
    case FY_FINISH:
        return "finish";
    case FY_SHARED_REMAKE:
        return "shared REMAKE";
    case FY_SHARED_GRAD:
        return "shared GRAD";
    case FY_SHARED_DX:
        return "shared DX";
    case FY_REMAKE:
        return "REMAKE";
    case FY_GRAD:
        return "GRAD";
    case FY_DX:
        return "DX";
    case FY_WEIGHT:
        return "WEIGHT";
    default:
        return "nothing";
    }
}

#endif
