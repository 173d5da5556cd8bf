/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy engine towards gradients (boxes of three-dimensional tensors, stored or added), and fragments from shared
 * memory.
 */
#ifndef FERRY_CUDA_PRIM_GRADIENT_CUH
#define FERRY_CUDA_PRIM_GRADIENT_CUH

#include "cuda/prim_copy.cuh"

FY_DEVICE void fy_store_box3(const CUtensorMap *map, uint32_t from, int column, int row, int matrix) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(row), "r"(matrix)
                 : "memory");
}

/* What is there += the box, in F32, one rounding; each element must have one writer. */
FY_DEVICE void fy_add_box3(const CUtensorMap *map, uint32_t from, int column, int row, int matrix) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
        "r"(from), "r"(column), "r"(row), "r"(matrix)
        : "memory");
}

/* The thread's number, read again: keeps what follows from it out of registers until it is needed. */
FY_DEVICE int fy_thread_again(void) {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* 2^x and 1 / x as the chip has them; denormals count as 0. */
FY_DEVICE float fy_chip_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FY_DEVICE float fy_chip_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Bounds that a NaN passes, in one instruction without a predicate. */
FY_DEVICE float fy_chip_min(float x, float y) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}

FY_DEVICE float fy_chip_max(float x, float y) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}

/* The inverse of fy_store_matrices. */
FY_DEVICE void fy_load_matrices(uint32_t (&v)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

#endif
