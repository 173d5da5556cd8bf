/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one instruction set: this file is built once for each, and every build gives the same bits. */

#include "cpu/kernels_tables.h"
#include "rules/bf16.h"

#if defined(FY_ISA_avx512)
#include "cpu/kernels_avx512.h"
#elif defined(FY_ISA_avx2)
#include "cpu/kernels_avx2.h"
#else
#include "cpu/kernels_portable.h"
#endif

#include "cpu/kernels_product.h"
#include "cpu/kernels_rows.h"

const fy_kernels FY_TABLE = {
    .isa = FY_ISA,
    .name = FY_ISA_NAME,
    .product = product,
    .round_row = round_row,
    .swiglu_row = swiglu_row,
    .swiglu_grad_row = swiglu_grad_row,
    .weighted_add_row = weighted_add_row,
    .widen_row = widen_row,
    .add_row = add_row,
};
