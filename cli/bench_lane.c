/* SPDX-License-Identifier: Apache-2.0 */
/* Gates and marks of a GPU's queue. */
#ifdef FERRY_HAVE_CUDA
#include "cli/bench_lane.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static const char *say(cudaError_t error) { return error == cudaSuccess ? NULL : cudaGetErrorString(error); }

static const char *say_driver(CUresult result) {
    return result == CUDA_SUCCESS ? NULL : "the driver refuses to wait for a word of memory";
}

static const char *find(const char *name, void *to) {
    enum cudaDriverEntryPointQueryResult found;
    void *entry = NULL;
    const char *why = say(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
    if (!why && !entry) why = "the driver cannot wait for a word of memory";
    if (!why) memcpy(to, &entry, sizeof entry);
    return why;
}

/* Once per process: ranks that are threads share it, and so do measurements that follow each other. GPUs and host have
 * one address space, so the memory has the same address for all of them. */
static const char *map_gates(bench_gates *gates) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int mapped;
    pthread_mutex_lock(&lock);
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const char *why = mapped ? NULL : say(cudaHostRegister(gates, sizeof *gates, flags));
    mapped |= !why;
    pthread_mutex_unlock(&lock);
    return why;
}

const char *bench_lane_open(bench_lane *lane, cli_device *device, bench_gates *gates, int rank, int ranks) {
    *lane = (bench_lane){.device = device, .gates = gates, .rank = rank, .ranks = ranks};
    /* Counters go on where the measurement before this one left them: the same on all ranks. */
    lane->opened = atomic_load(&gates->open.value);
    lane->met = atomic_load(&gates->arrived[rank].value);
    const char *why = find("cuStreamWriteValue32", &lane->write);
    if (!why) why = find("cuStreamWaitValue32", &lane->await);
    if (!why) why = map_gates(gates);
    while (!why && lane->made < BENCH_MARKS) {
        why = say(cudaEventCreate(&lane->mark[lane->made]));
        if (!why) lane->made++;
    }
    return why;
}

void bench_lane_give_up(bench_gates *gates, int rank) {
    const uint32_t beyond = INT32_MAX;
    atomic_store(&gates->arrived[rank].value, beyond);
    atomic_store(&gates->open.value, beyond);
}

void bench_lane_close(bench_lane *lane) {
    for (int i = 0; i < lane->made; i++) cudaEventDestroy(lane->mark[i]);
    lane->made = 0;
}

static CUdeviceptr arrived(const bench_lane *lane, int rank) { return (CUdeviceptr)&lane->gates->arrived[rank].value; }

const char *bench_lane_begin(bench_lane *lane) {
    lane->marks = 0;
    lane->opened++;
    return say_driver(lane->await(lane->device->stream, (CUdeviceptr)&lane->gates->open.value, lane->opened,
                                  CU_STREAM_WAIT_VALUE_GEQ));
}

const char *bench_lane_meet(bench_lane *lane) {
    CUstream stream = lane->device->stream;
    lane->met++;
    const char *why = say_driver(lane->write(stream, arrived(lane, lane->rank), lane->met, 0));
    for (int r = 0; r < lane->ranks && !why; r++)
        why = say_driver(lane->await(stream, arrived(lane, r), lane->met, CU_STREAM_WAIT_VALUE_GEQ));
    return why;
}

const char *bench_lane_mark(bench_lane *lane) {
    if (lane->marks == BENCH_MARKS) return "too many marks";
    return say(cudaEventRecord(lane->mark[lane->marks++], lane->device->stream));
}

const char *bench_lane_go(bench_lane *lane, ferry_comm *comm) {
    const char *why = ferry_barrier(comm) ? ferry_last_error() : NULL;
    /* Every rank opens it, all with the same number. */
    atomic_store(&lane->gates->open.value, lane->opened);
    return why ? why : say(cudaStreamSynchronize(lane->device->stream));
}

double bench_lane_between(const bench_lane *lane, int from, int to) {
    float ms = 0;
    cudaEventElapsedTime(&ms, lane->mark[from], lane->mark[to]);
    return 1e-3 * (double)ms;
}
#else
typedef int bench_lane_is_for_gpus;
#endif
