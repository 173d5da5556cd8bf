/* SPDX-License-Identifier: Apache-2.0 */
/* Which build of the kernels runs: the widest that the processor has, or the one that was asked for. */
#include "core/status.h"
#include "cpu/kernels_tables.h"

size_t fy_product_scratch_bytes(void) { return sizeof(float) * FY_BLOCK_DEPTH * (FY_A_LANES + FY_B_LANES); }

#ifdef __x86_64__
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* NULL when the processor cannot run it. */
static const fy_kernels *kernels_of(ferry_isa isa) {
    switch (isa) {
    case FERRY_ISA_PORTABLE:
        return &fy_kernels_portable;
#ifdef __x86_64__
    case FERRY_ISA_AVX2:
        return has_avx2() ? &fy_kernels_avx2 : NULL;
    case FERRY_ISA_AVX512:
        return has_avx512() ? &fy_kernels_avx512 : NULL;
#endif
    default:
        return NULL;
    }
}

ferry_status fy_kernels_select(ferry_isa isa, const fy_kernels **out) {
    static const ferry_isa widest_first[] = {FERRY_ISA_AVX512, FERRY_ISA_AVX2, FERRY_ISA_PORTABLE};
    const fy_kernels *found = kernels_of(isa);
    if (isa == FERRY_ISA_AUTO)
        for (int i = 0; !found; i++) found = kernels_of(widest_first[i]);
    if (isa < FERRY_ISA_AUTO || isa > FERRY_ISA_AVX512)
        return fy_fail(FERRY_E_INVALID,
                       "instruction set: %d is not known, expected FERRY_ISA_AUTO (0) to FERRY_ISA_AVX512 (3)",
                       (int)isa);
    if (!found)
        return fy_fail(FERRY_E_UNSUPPORTED,
                       "instruction set: this processor or build has no %s; use auto, or portable, which runs "
                       "everywhere",
                       isa == FERRY_ISA_AVX512 ? "AVX-512 (f, bw, dq, vl)" : "AVX2 with FMA");
    *out = found;
    return FERRY_OK;
}
