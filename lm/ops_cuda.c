/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on a GPU: its memory and a stream per rank; the kernels are in lm/cuda. */
#include "lm/ops.h"

#ifdef FERRY_HAVE_CUDA
#include "lm/cuda/kernels.h"
#include "lm/error.h"

/* A rank is a thread, so its stream is too, as the current device is. It waits for no other stream. */
static _Thread_local cudaStream_t queue;

cudaStream_t lm_cuda_stream(void) { return queue; }

static int check(cudaError_t error, const char *doing) {
    return error == cudaSuccess ? 0 : lm_fail("%s: CUDA says: %s", doing, cudaGetErrorString(error));
}

static int open_device(int device) {
    LM_TRY(check(cudaSetDevice(device), "choosing the GPU"));
    LM_TRY(check(lm_cuda_load_dense(), "loading the dense kernels"));
    LM_TRY(check(lm_cuda_load_rows(), "loading the kernels of rows"));
    LM_TRY(check(lm_cuda_load_attention(), "loading the attention kernels"));
    LM_TRY(check(lm_cuda_load_arrays(), "loading the kernels of arrays"));
    return check(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "making a stream");
}

static void close_device(void) {
    cudaStreamDestroy(queue);
    queue = NULL;
}

static void *stream(void) { return queue; }

static void *alloc(size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes ? bytes : 1) != cudaSuccess) return NULL;
    cudaMemsetAsync(memory, 0, bytes, queue);
    return memory;
}

static void free_memory(void *memory) { cudaFree(memory); }

static int wait_for_all(void) {
    LM_TRY(check(cudaStreamSynchronize(queue), "waiting for the GPU"));
    return check(cudaGetLastError(), "working on the GPU");
}

static int get(void *host, const void *from, size_t bytes) {
    LM_TRY(check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, queue), "copying from the GPU"));
    return wait_for_all();
}

/* Out of pageable memory: CUDA has its own copy of the bytes when it returns. */
static void copy(void *to, const void *from, size_t bytes) {
    if (bytes) cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue);
}

static void zero(void *to, size_t bytes) {
    if (bytes) cudaMemsetAsync(to, 0, bytes, queue);
}

static const lm_ops ops = {.whole = 1,
                           .open = open_device,
                           .close = close_device,
                           .stream = stream,
                           .alloc = alloc,
                           .free = free_memory,
                           .wait = wait_for_all,
                           .get = get,
                           .put = copy,
                           .copy = copy,
                           .zero = zero,
                           .embed = lm_cuda_embed,
                           .embed_back = lm_cuda_embed_back,
                           .linear = lm_cuda_linear,
                           .linear_back = lm_cuda_linear_back,
                           .norm = lm_cuda_norm,
                           .norm_back = lm_cuda_norm_back,
                           .attend = lm_cuda_attend,
                           .attend_back = lm_cuda_attend_back,
                           .choose = lm_cuda_choose,
                           .choose_back = lm_cuda_choose_back,
                           .cross_entropy = lm_cuda_cross_entropy,
                           .round = lm_cuda_round,
                           .add_bf16 = lm_cuda_add_bf16,
                           .transpose = lm_cuda_transpose,
                           .add = lm_cuda_add,
                           .add_doubles = lm_cuda_add_doubles,
                           .add_up = lm_cuda_add_up,
                           .square_sums = lm_cuda_square_sums,
                           .count = lm_cuda_count,
                           .balance = lm_cuda_balance,
                           .adamw = lm_cuda_adamw};

const lm_ops *const lm_ops_cuda = &ops;
#else
const lm_ops *const lm_ops_cuda = NULL;
#endif
