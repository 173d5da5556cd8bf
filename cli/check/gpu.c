/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU backend is tried by making a layer and a context in a child process, since `ferry check` forks and must not
 * have touched a GPU before. check.c asks once; the suites fit their problems and ways to the answer.
 */
#include "cli/check/gpu.h"

#include "cli/device.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- What there is ---- */

/* What the child that tries the backend says. */
typedef struct trial {
    int there;     /* a layer could be made */
    char why[240]; /* why it or its context could not; else "" */
} trial;

static trial try_backend(ferry_backend backend) {
    trial t = {.there = 0};
    ferry_thread_group *group = NULL;
    ferry_comm *comm = NULL;
    ferry_layer *layer = NULL;
    ferry_context *context = NULL;
    ferry_comm_config config;
    ferry_layer_config shape;
    ferry_comm_config_init(&config);
    ferry_layer_config_init(&shape);
    config.backend = backend;
    shape.hidden = shape.intermediate = 8;
    shape.experts = shape.slots = shape.max_tokens = 1;
    ferry_status status = ferry_thread_group_create(1, &group);
    if (!status) status = ferry_thread_group_bootstrap(group, 0, &config.bootstrap);
    if (!status) status = ferry_comm_create(&config, &comm);
    if (!status) status = ferry_layer_create(comm, &shape, &layer);
    t.there = status == FERRY_OK;
    if (!status) status = ferry_context_create(layer, NULL, &context);
    if (status) snprintf(t.why, sizeof t.why, "%s", ferry_last_error());
    ferry_context_destroy(context);
    ferry_layer_destroy(layer);
    ferry_comm_destroy(comm);
    ferry_thread_group_destroy(group);
    return t;
}

/* In a child process: this one forks the tests, and must not have touched a GPU. */
static trial try_apart(ferry_backend backend) {
    trial t = {.there = 0, .why = "no answer from the process that tries the backend"};
    int ends[2];
    if (pipe(ends)) return t;
    fflush(NULL); /* or the child would print what is buffered here again */
    pid_t pid = fork();
    if (pid == 0) {
        trial mine = try_backend(backend);
        _exit(write(ends[1], &mine, sizeof mine) != (ssize_t)sizeof mine);
    }
    close(ends[1]);
    trial got;
    if (pid > 0 && read(ends[0], &got, sizeof got) == (ssize_t)sizeof got) t = got;
    if (pid > 0) waitpid(pid, NULL, 0);
    close(ends[0]);
    return t;
}

int check_backend_find(check_options *options, char *why, size_t room) {
    cli_devices devices;
    int there = cli_devices_find((ferry_backend)options->backend, &devices);
    snprintf(why, room, "%s", devices.why);
    options->devices = devices.count;
    if (!there || options->backend == FERRY_CPU) return there;
    trial t = try_apart((ferry_backend)options->backend);
    snprintf(t.there ? options->no_backward : why, t.there ? sizeof options->no_backward : room, "%s", t.why);
    return t.there;
}

/* ---- Fitting ---- */

static int64_t round_up(int64_t extent) { return (extent + 7) / 8 * 8; }

void check_fit_problem(const check_options *options, check_problem *problem) {
    if (options->backend != FERRY_CUDA) return;
    problem->hidden = round_up(problem->hidden);
    problem->intermediate = round_up(problem->intermediate);
    problem->shared = round_up(problem->shared);
    problem->forward_only |= options->no_backward[0] != 0;
}

void check_fit_way(const check_options *options, check_way *way) {
    if (options->backend != FERRY_CUDA) return;
    if (check_way_ranks(way) > options->devices) way->processes = 0;
    way->symmetric = 0;
}
