/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for src/cuda/multiply.cuh: nothing is multiplied here, but what role_product.cuh calls has to be declared. */
#ifndef FERRY_CUDA_MULTIPLY_CUH
#define FERRY_CUDA_MULTIPLY_CUH

#include "cuda/block.cuh"

struct fy_operands {};

fy_operands fy_operands_of(uint8_t *shared, int group);
template <int A_TURNED, int B_TURNED, class BETWEEN>
void fy_multiply(float (&acc)[128], const fy_operands &operands, fy_stage &stage, int steps, int add, BETWEEN between);
void fy_pass_stages(uint64_t *full, uint64_t *empty, fy_stage &stage, int group, int thread, int steps);

#endif
