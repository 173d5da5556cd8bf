/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How roles note their times. Kernels that are compiled without FY_TRACE get empty functions, and with them the same
 * instructions as if there were none; kernel_forward_trace.cu and kernel_backward_trace.cu define it.
 * A span is written when it ends, by the first lane of a warp that has a number among FERRY_SM_WORKERS. Begins are kept
 * in shared memory behind the block's own, so that no register is needed for them.
 */
#ifndef FERRY_CUDA_TRACE_CUH
#define FERRY_CUDA_TRACE_CUH

#include "cuda/block.cuh"
#include "cuda/prim_gradient.cuh"
#include "cuda/wait.cuh"

#ifndef FY_TRACE
#define FY_TRACE 0
#endif

enum fy_gpu_mark {
    FY_MARK_BEFORE = FY_SITES - 1,
#define FY_GPU_MARK_ENUM(NAME, phase, waits, what) FY_MARK_##NAME,
    FY_GPU_MARK_MAP(FY_GPU_MARK_ENUM)
#undef FY_GPU_MARK_ENUM
        FY_MARKS
};

static_assert(FY_MARKS <= 1 << FY_MARK_BITS, "a mark has its bits");

/* A wait that is over sooner was none, but for the looking. */
enum { FY_SHORTEST_WAIT_NS = 300 };

/* One worker's, so laid out that its functions need few registers. */
typedef struct fy_trace_worker {
    uint64_t begin[2]; /* of a unit, or a wait between units; of a wait inside a unit */
    int32_t block[2];  /* of rows; -1: none */
    fy_gpu_span *next;
    uint32_t room, count;
} fy_trace_worker;

enum {
    FY_TRACE_SHARED_BYTES = 232448, /* all that a block can have */
    FY_TRACE_AT = FY_TRACE_SHARED_BYTES - FERRY_SM_WORKERS * (int)sizeof(fy_trace_worker)
};

static_assert((int)FY_SHARED_BYTES <= (int)FY_TRACE_AT, "they fit behind the block's own");

#if FY_TRACE
FY_DEVICE fy_trace_worker *fy_trace_workers(void) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return (fy_trace_worker *)(shared + FY_TRACE_AT);
}

/* This thread among the workers of its multiprocessor; NULL: it is none. */
FY_DEVICE fy_trace_worker *fy_trace_mine(void) {
    int thread = fy_thread_again(), warp = thread / 32;
    if (thread % 32 || (warp > 4 && warp != 8)) return nullptr;
    return fy_trace_workers() + min(warp, 5);
}

/* Before the block's first barrier. */
FY_DEVICE void fy_trace_open(const fy_gpu_call &c) {
    int worker = threadIdx.x;
    if (worker >= FERRY_SM_WORKERS) return;
    uint32_t room = (int)blockIdx.x < c.trace.blocks ? c.trace.room : 0;
    fy_gpu_span *first = c.trace.span + (int64_t)(blockIdx.x * FERRY_SM_WORKERS + worker) * c.trace.room;
    fy_trace_workers()[worker] = {{0, 0}, {-1, -1}, first, room, 0};
}

/* Behind the block's last barrier. */
FY_DEVICE void fy_trace_close(const fy_gpu_call &c) {
    if (threadIdx.x < FERRY_SM_WORKERS && (int)blockIdx.x < c.trace.blocks)
        c.trace.count[blockIdx.x * FERRY_SM_WORKERS + threadIdx.x] = fy_trace_workers()[threadIdx.x].count;
}

/* depth 0: a unit, or a wait between units; 1: a wait inside a unit. `block`: of rows, -1: of none. */
FY_DEVICE void fy_trace_begin(int depth, int block) {
    fy_trace_worker *mine = fy_trace_mine();
    if (!mine) return;
    mine->block[depth] = block;
    mine->begin[depth] = fy_now();
}

FY_DEVICE void fy_trace_end(int depth, int mark) {
    fy_trace_worker *mine = fy_trace_mine();
    if (!mine) return;
    const uint32_t *begin = (const uint32_t *)&mine->begin[depth];
    uint32_t ns = (uint32_t)fy_now() - begin[0];
    if (mark <= FY_MARK_TOKENS && ns < FY_SHORTEST_WAIT_NS) return;
    mine->count++;
    if (mine->room == 0) return;
    mine->room--;
    uint32_t what = (uint32_t)mark | (uint32_t)(mine->block[depth] + 1) << FY_MARK_BITS;
    __stcs((uint4 *)mine->next, make_uint4(begin[0], begin[1], ns, what));
    mine->next++;
}

/* A launch's first begin and last end over its blocks. */
FY_DEVICE void fy_trace_launch_begin(const fy_gpu_call &c, int launch) {
    if (threadIdx.x == 0) atomicMin((unsigned long long *)&c.trace.launch[2 * launch], (unsigned long long)fy_now());
}

FY_DEVICE void fy_trace_launch_end(const fy_gpu_call &c, int launch) {
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax((unsigned long long *)&c.trace.launch[2 * launch + 1], (unsigned long long)fy_now());
}
#else
FY_DEVICE void fy_trace_open(const fy_gpu_call &) {}
FY_DEVICE void fy_trace_close(const fy_gpu_call &) {}
FY_DEVICE void fy_trace_begin(int, int) {}
FY_DEVICE void fy_trace_end(int, int) {}
FY_DEVICE void fy_trace_launch_begin(const fy_gpu_call &, int) {}
FY_DEVICE void fy_trace_launch_end(const fy_gpu_call &, int) {}
#endif

/* A unit ends and the one that follows it begins. */
FY_DEVICE void fy_trace_next(int mark, int block) {
    fy_trace_end(0, mark);
    fy_trace_begin(0, block);
}

/* fy_await of one thread that waits between units. */
FY_DEVICE bool fy_await_between(const fy_gpu_call &c, const uint32_t *flag, uint32_t target, int site, int block) {
    fy_trace_begin(0, block);
    bool ok = fy_await<false>(c, flag, target, site, c.rank, c.progress_timeout_ns);
    fy_trace_end(0, site);
    return ok;
}

#endif
