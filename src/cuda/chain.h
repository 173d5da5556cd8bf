/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launches of a call as one graph, which costs the host a third of what they cost one by one. The first call of a
 * kind is recorded; later ones give the same nodes their new arguments, where these differ from the last ones, and
 * launch the graph. A call that the caller captures, or that is traced, is launched directly.
 */
#ifndef FERRY_CUDA_CHAIN_H
#define FERRY_CUDA_CHAIN_H

#include "core/told.h"

#include <cuda_runtime.h>

enum { FY_CHAIN_LAUNCHES = 8 };

/* A recorded call. All zeros: not recorded yet. */
typedef struct fy_chain {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node[FY_CHAIN_LAUNCHES];
    fy_told told[FY_CHAIN_LAUNCHES]; /* the arguments of each */
    int count;
} fy_chain;

/* Where the launches of a call go. */
typedef struct fy_launcher {
    cudaStream_t stream; /* the caller's; while recording, one that is captured */
    fy_chain *chain;     /* NULL: launched directly */
    int recording;
    int next; /* the node that the next launch is */
} fy_launcher;

#ifdef __cplusplus
extern "C" {
#endif
/* `chain` NULL, or a stream that is being captured: direct. */
cudaError_t fy_chain_begin(fy_launcher *to, fy_chain *chain, cudaStream_t stream);
/* After a launch while recording: keeps its node. */
cudaError_t fy_chain_keep(fy_launcher *to);
/* Launches what was gathered, on `stream`. `error`: of the launches before; after one nothing is launched. */
cudaError_t fy_chain_end(fy_launcher *to, cudaStream_t stream, cudaError_t error);
void fy_chain_destroy(fy_chain *chain);
#ifdef __cplusplus
}
#endif
#endif
