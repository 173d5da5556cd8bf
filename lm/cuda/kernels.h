/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on a GPU: functions that enqueue kernels on the calling thread's stream. See lm/ops.h. */
#ifndef FERRY_LM_CUDA_KERNELS_H
#define FERRY_LM_CUDA_KERNELS_H

#include "lm/ops.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t lm_cuda_stream(void);

/* Each file's kernels, once per device before the first launch: a kernel that is loaded when it is first launched may
 * wait for all work there, that of a rank which waits for this one included. */
cudaError_t lm_cuda_load_dense(void);
cudaError_t lm_cuda_load_rows(void);
cudaError_t lm_cuda_load_attention(void);
cudaError_t lm_cuda_load_arrays(void);

/* dense.cu */
void lm_cuda_linear(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, int add);
void lm_cuda_linear_back(float *dw, lm_parts parts, const float *dy, const float *x, int64_t in, int64_t out);
void lm_cuda_transpose(float *to, const float *from, int64_t rows, int64_t columns);

/* rows.cu */
void lm_cuda_embed(float *x, const float *table, const unsigned char *bytes, int64_t rows, int64_t width);
void lm_cuda_embed_back(float *dtable, lm_parts parts, const float *dx, const unsigned char *bytes, int64_t width);
void lm_cuda_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t width);
void lm_cuda_norm_back(float *dx, float *dgain, lm_parts parts, const float *dy, const float *x, const float *scale,
                       const float *gain, int64_t width);
void lm_cuda_choose(const lm_router *router, float *p, int32_t *ids, float *weights, int64_t tokens);
void lm_cuda_choose_back(const lm_router *router, float *dlogits, const float *dweights, const float *p,
                         const int32_t *ids, const float *weights, const float *pull, int64_t tokens);
void lm_cuda_cross_entropy(double *sums, lm_parts parts, float *logits, const unsigned char *target, float scale);

/* attention.cu */
void lm_cuda_attend(const lm_attention *attention, float *out, float *p, float *qkv, int64_t sequences);
void lm_cuda_attend_back(const lm_attention *attention, float *dqkv, const float *dout, const float *p,
                         const float *qkv, int64_t sequences);

/* arrays.cu */
void lm_cuda_round(uint16_t *to, const float *from, int64_t count);
void lm_cuda_add_bf16(float *to, const float *a, const uint16_t *b, int64_t count);
void lm_cuda_add(float *to, const float *from, int64_t count);
void lm_cuda_add_doubles(double *to, const double *from, int64_t count);
void lm_cuda_add_up(double *to, const double *from, int64_t count);
void lm_cuda_square_sums(double *to, const float *x, int64_t count, int64_t sums);
void lm_cuda_count(double *counts, lm_parts parts, const int32_t *ids, int64_t slots, int64_t experts);
void lm_cuda_balance(float *pull, double *load, const double *counts, int64_t count, double weight, double tokens,
                     double slots);
void lm_cuda_adamw(const lm_config *config, int64_t step, float *value, float *moment1, float *moment2,
                   const float *gradient, int64_t count, const double *squares, int decays);

#ifdef __cplusplus
}
#endif
#endif
