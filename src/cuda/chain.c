/* SPDX-License-Identifier: Apache-2.0 */
/* Recording and launching the graph of a call, for engine.c and launch_backward.c; launch.cuh updates its nodes. */
#include "cuda/chain.h"

#include <string.h>

/* What this thread calls is then nobody's business who captures in another thread, and the other way round. */
static enum cudaStreamCaptureMode exchange_mode(enum cudaStreamCaptureMode mode) {
    cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static cudaError_t record(fy_launcher *to) {
    enum cudaStreamCaptureMode mode = exchange_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaStreamCreateWithFlags(&to->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        error = cudaStreamBeginCapture(to->stream, cudaStreamCaptureModeRelaxed);
        to->recording = error == cudaSuccess;
        if (!to->recording) cudaStreamDestroy(to->stream);
    }
    exchange_mode(mode);
    return error;
}

cudaError_t fy_chain_begin(fy_launcher *to, fy_chain *chain, cudaStream_t stream) {
    enum cudaStreamCaptureStatus status;
    *to = (fy_launcher){.stream = stream};
    if (!chain) return cudaSuccess;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error != cudaSuccess || status != cudaStreamCaptureStatusNone) return error;
    to->chain = chain;
    return chain->exec ? cudaSuccess : record(to);
}

/* Launches of one stream follow each other, so the latest is the only one that a next one would wait for. */
cudaError_t fy_chain_keep(fy_launcher *to) {
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *latest = NULL;
    size_t count = 0;
    cudaError_t error = cudaStreamGetCaptureInfo(to->stream, &status, NULL, NULL, &latest, NULL, &count);
    if (error != cudaSuccess) return error;
    if (count != 1 || to->next == FY_CHAIN_LAUNCHES) return cudaErrorStreamCaptureInvalidated;
    to->chain->node[to->next++] = latest[0];
    return cudaSuccess;
}

static cudaError_t instantiate(fy_launcher *to, cudaError_t error) {
    fy_chain *chain = to->chain;
    enum cudaStreamCaptureMode mode = exchange_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t ended = cudaStreamEndCapture(to->stream, &chain->graph);
    if (error == cudaSuccess) error = ended;
    cudaStreamDestroy(to->stream);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&chain->exec, chain->graph, 0);
    if (error != cudaSuccess) fy_chain_destroy(chain);
    chain->count = to->next;
    exchange_mode(mode);
    return error;
}

cudaError_t fy_chain_end(fy_launcher *to, cudaStream_t stream, cudaError_t error) {
    if (to->recording) error = instantiate(to, error);
    if (error != cudaSuccess || !to->chain) return error;
    if (to->next != to->chain->count) return cudaErrorInvalidValue;
    return cudaGraphLaunch(to->chain->exec, stream);
}

void fy_chain_destroy(fy_chain *chain) {
    if (chain->exec) cudaGraphExecDestroy(chain->exec);
    if (chain->graph) cudaGraphDestroy(chain->graph);
    for (int i = 0; i < FY_CHAIN_LAUNCHES; i++) fy_told_forget(&chain->told[i]);
    memset(chain, 0, sizeof *chain);
}
