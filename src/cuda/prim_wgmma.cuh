/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix unit: 64 x 256 x 16 BF16 products of a warpgroup, operands in shared memory, sums in registers. An operand
 * is rows of 128 bytes, swizzled over groups of 8 rows (1,024 bytes), at a multiple of 1,024. Straight: a row holds 64
 * steps of the contraction. Turned: rows run along the contraction (a box is 64 steps of it, 64 elements of the
 * operand's other dimension wide; boxes one behind the other), so that a product can contract over the row dimension of
 * a tensor without a transpose.
 */
#ifndef FERRY_CUDA_PRIM_WGMMA_CUH
#define FERRY_CUDA_PRIM_WGMMA_CUH

#include "cuda/prim_barrier.cuh"

enum {
    FY_BOX_BYTES = 64 * 64 * 2,
    FY_STRAIGHT_STEP = 2, /* descriptor units (16 bytes) between two steps of 16 along the contraction */
    FY_TURNED_STEP = 128
};

/* An operand as its place in shared memory, in units of 16 bytes. */
FY_DEVICE uint32_t fy_operand(const void *p) { return fy_shared_address(p) >> 4; }

FY_DEVICE uint32_t fy_address_of(uint32_t operand) { return operand << 4; }

/* Groups of 8 rows follow each other; of a turned operand so do its boxes. The swizzle covers 128 bytes. */
template <int TURNED>
FY_DEVICE uint64_t fy_descriptor(uint32_t operand) {
    return (uint64_t)(1u << 30 | 64) << 32 | (operand + ((TURNED ? FY_BOX_BYTES / 16 : 1) << 16));
}

FY_DEVICE void fy_product_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

FY_DEVICE void fy_product_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most PENDING committed groups are still at work. */
template <int PENDING>
FY_DEVICE void fy_product_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* d = (add ? d : 0) + A B^T, one step of 16 along the contraction. */
template <int A_TURNED, int B_TURNED>
FY_DEVICE void fy_product_step(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, %128, %129, p, 1, 1, %131, %132;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
                   "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
                   "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
                   "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
                   "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),
                   "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]),
                   "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]),
                   "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
                   "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),
                   "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
                   "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
                   "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b), "r"(add), "n"(A_TURNED), "n"(B_TURNED));
}

#endif
