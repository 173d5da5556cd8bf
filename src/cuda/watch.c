/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults between host and device. A wait on the device that passes its deadline writes the report page; the watcher
 * makes it the communicator's fault. A fault that the host finds (a dead peer) becomes the device's abort word, which
 * the watcher writes with the copy engine while kernels run.
 */
#include "cuda/backend.h"

#include "rules/ring.h"

#include <stdio.h>
#include <time.h>

const struct fy_gpu_site_word fy_gpu_site_words[FY_SITES] = {
    {FERRY_PHASE_SCHEDULE, "nothing"},
    {FERRY_PHASE_SCHEDULE, "its publication of the call"},
    {FERRY_PHASE_PULL, "room in the ring of tokens"},
    {FERRY_PHASE_COMPUTE, "rows that are being pulled"},
    {FERRY_PHASE_COMPUTE, "room in the ring of h"},
    {FERRY_PHASE_COMPUTE, "column tiles of h"},
    {FERRY_PHASE_SUM, "result rows of its tokens (complete ones are counted; awaited rank unknown)"},
    {FERRY_PHASE_SCHEDULE, "the same parts of a backward of the same forward"},
    {FERRY_PHASE_PULL, "room in the ring of gradient rows"},
    {FERRY_PHASE_COMPUTE, "g and u that are computed again"},
    {FERRY_PHASE_COMPUTE, "gradient rows"},
    {FERRY_PHASE_COMPUTE, "open sums of a weight gradient"},
    {FERRY_PHASE_PULL, "its last pull of the call"}};

static void raise_device_fault(fy_gpu_layer *l) {
    ferry_comm *comm = l->layer->comm;
    const volatile fy_gpu_page *p = l->engine.page;
    int site = p->site >= FY_AT_ENTER && p->site < FY_SITES ? p->site : 0;
    fy_fault fault = {.status = site == FY_AT_KIND ? FERRY_E_MISMATCH : FERRY_E_TIMEOUT,
                      .phase = fy_gpu_site_words[site].phase,
                      .waiting_rank = comm->rank,
                      .awaited_rank = p->awaited_rank,
                      .expected = p->expected,
                      .seen = p->seen,
                      .waited_s = site == FY_AT_ENTER ? comm->config.enter_timeout_s : comm->config.progress_timeout_s};
    snprintf(fault.what, sizeof fault.what, "%s", fy_gpu_site_words[site].what);
    fy_raise(comm, &fault);
}

void fy_gpu_abort(fy_gpu_comm *g, fy_gpu_layer *l) {
    uint8_t *word = l->memory.part[l->layer->comm->rank] + l->engine.call.at.abort;
    if (!l->told && cudaMemcpyAsync(word, g->one, sizeof *g->one, cudaMemcpyHostToDevice, g->side) == cudaSuccess)
        l->told = 1;
}

/* The lock is held. */
static void look(ferry_comm *comm) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    for (fy_gpu_layer *l = g->layers; l; l = l->next) {
        if (((volatile fy_gpu_page *)l->engine.page)->fault) raise_device_fault(l);
        if (fy_aborted(comm)) fy_gpu_abort(g, l);
    }
}

static void *watch(void *user) {
    ferry_comm *comm = user;
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    cudaSetDevice(g->device);
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 5 * 1000 * 1000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&g->wake, &g->lock, &until);
        look(comm);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

ferry_status fy_gpu_watch_start(ferry_comm *comm) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int error = pthread_create(&g->watcher, NULL, watch, comm);
    if (error == 0) return FERRY_OK;
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    return fy_fail(FERRY_E_SYSTEM, "starting the thread that watches for faults: error %d", error);
}

void fy_gpu_watch_stop(ferry_comm *comm) {
    fy_gpu_comm *g = fy_gpu_comm_of(comm);
    pthread_mutex_lock(&g->lock);
    g->stop = 1;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->watcher, NULL);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
}

static void take_report(fy_gpu_layer *l) {
    const volatile fy_gpu_page *p = l->engine.page;
    ferry_layer *layer = l->layer;
    uint32_t number = p->report;
    if (number == l->reported) return;
    atomic_thread_fence(memory_order_acquire);
    int64_t slot = p->report_slot, slots = layer->shape.slots;
    layer->report.count = p->report_count;
    layer->report.rank = p->report_rank;
    layer->report.token = slot < 0 ? -1 : slot / slots;
    layer->report.slot = slot < 0 ? -1 : slot % slots;
    layer->report.id = p->report_id;
    layer->report.status = (ferry_status)p->report_status;
    l->reported = number;
}

static void take_stats(fy_gpu_layer *l) {
    const volatile fy_gpu_page *p = l->engine.page;
    const fy_shape *s = &l->layer->shape;
    ferry_stats *to = &l->layer->stats;
    int64_t padded = p->blocks * FY_BLOCK_ROWS;
    to->rows = p->rows;
    to->macrobatches = p->macrobatches;
    to->steps = p->steps;
    to->ring_high_water = padded < s->ring_rows ? padded : s->ring_rows;
    to->pulls = p->pulls;
    to->recomputed_rows = p->recomputed_rows;
    /* In a backward router weights come with the rows, and their gradients go back with dx, unless it makes none. */
    int64_t with = p->backward ? (int64_t)sizeof(float) : 0, pushes = p->backward != FERRY_BACKWARD_WEIGHT;
    to->bytes_pull = p->pulls * s->hidden * 2 + p->rows * with;
    to->bytes_pull_remote = p->remote_pulls * s->hidden * 2 + p->remote_rows * with;
    to->bytes_push = p->rows * pushes * (s->hidden * 2 + with);
    to->bytes_push_remote = p->remote_rows * pushes * (s->hidden * 2 + with);
    to->bytes_schedule = p->table_bytes;
    to->bytes_sum = (p->sum_rows + p->tokens) * pushes * s->hidden * 2;
    to->flop = 2 * s->hidden * (p->routed_products * s->intermediate + p->shared_products * s->shared);
}

void fy_gpu_refresh(ferry_layer *layer) {
    fy_gpu_comm *g = fy_gpu_comm_of(layer->comm);
    fy_gpu_layer *l = layer->state;
    pthread_mutex_lock(&g->lock);
    look(layer->comm);
    pthread_mutex_unlock(&g->lock);
    take_report(l);
    take_stats(l);
}
