/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/prim_copy.cuh: stores are left to the copy engine (signals.cc), which reads and writes later. */
#ifndef FERRY_CUDA_PRIM_COPY_CUH
#define FERRY_CUDA_PRIM_COPY_CUH

#include "cuda/prim_barrier.cuh"

#include <cuda.h>

#include <vector>

struct box_store {
    const CUtensorMap *map;
    const uint8_t *from;
    int column, row;
    unsigned thread;
    bool committed;
    int tag; /* what was read; -1: it has not been yet */
};

inline std::vector<box_store> stores_under_way; /* those that are written leave */

FY_DEVICE bool is_under_way(bool unread) {
    for (const box_store &s : stores_under_way)
        if (s.thread == threadIdx.x && s.committed && (!unread || s.tag < 0)) return true;
    return false;
}

FY_DEVICE void fy_store_box2(const CUtensorMap *map, uint32_t from, int column, int row) {
    step();
    stores_under_way.push_back({map, shared_memory + from, column, row, threadIdx.x, false, -1});
}
FY_DEVICE void fy_store_commit() {
    for (box_store &s : stores_under_way) s.committed |= s.thread == threadIdx.x;
}
template <int PENDING>
FY_DEVICE void fy_store_wait_read() {
    static_assert(PENDING == 0, "groups are not told apart");
    while (is_under_way(true)) rest();
}
FY_DEVICE void fy_store_wait_written() {
    while (is_under_way(false)) rest();
}

/* Nobody here calls them. */
void fy_load_box2(void *to, const CUtensorMap *map, uint64_t *full, int column, int row);
void fy_load_box3(void *to, const CUtensorMap *map, uint64_t *full, int column, int row, int matrix);

#endif
