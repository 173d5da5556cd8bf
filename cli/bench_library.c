/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions that are needed are declared here by their documented signatures and loaded by name. */
#include "cli/bench_library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Enumerators of the library's interface. */
enum { OP_N = 0, OP_T = 1, TYPE_BF16 = 14, COMPUTE_F32 = 68, ALGORITHM_DEFAULT = -1 };

#define LIBRARY_FUNCTIONS(X)                                                                                           \
    X(create, "cublasCreate_v2", (void **handle))                                                                      \
    X(destroy, "cublasDestroy_v2", (void *handle))                                                                     \
    X(set_stream, "cublasSetStream_v2", (void *handle, void *stream))                                                  \
    X(product, "cublasGemmEx",                                                                                         \
      (void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda,   \
       const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute,                \
       int algorithm))

struct bench_library {
    void *loaded, *handle;
#define LIBRARY_MEMBER(member, symbol, arguments) int(*member) arguments;
    LIBRARY_FUNCTIONS(LIBRARY_MEMBER)
#undef LIBRARY_MEMBER
};

static int load(bench_library *l) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !l->loaded; i++)
        l->loaded = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!l->loaded) return 0;
        /* A data pointer becomes a function pointer through memory: ISO C has no cast for it. */
#define LIBRARY_LOAD(member, symbol, arguments)                                                                        \
    {                                                                                                                  \
        void *address = dlsym(l->loaded, symbol);                                                                      \
        if (!address) return 0;                                                                                        \
        memcpy(&l->member, &address, sizeof address);                                                                  \
    }
    LIBRARY_FUNCTIONS(LIBRARY_LOAD)
#undef LIBRARY_LOAD
    return 1;
}

bench_library *bench_library_open(void *stream) {
    bench_library *l = calloc(1, sizeof *l);
    if (l && load(l) && l->create(&l->handle) == 0 && l->set_stream(l->handle, stream) == 0) return l;
    bench_library_close(l);
    return NULL;
}

void bench_library_close(bench_library *library) {
    if (!library) return;
    if (library->handle) library->destroy(library->handle);
    if (library->loaded) dlclose(library->loaded);
    free(library);
}

/* The library counts columns first: what it sees as C is the transpose, B times the transpose of A. */
int bench_library_product(bench_library *l, int n, const void *a, const void *b, void *c) {
    const float one = 1, zero = 0;
    return l->product(l->handle, OP_T, OP_N, n, n, n, &one, b, TYPE_BF16, n, a, TYPE_BF16, n, &zero, c, TYPE_BF16, n,
                      COMPUTE_F32, ALGORITHM_DEFAULT) == 0;
}
