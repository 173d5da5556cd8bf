/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs its host thread when C makes it: for the Python benchmarks, on a layer that they have made. */
#include "ferry/ferry.h"

#include <time.h>

typedef ferry_status forward_function(ferry_layer *layer, const ferry_forward_args *args);

/* Processor time of this thread per call, in seconds, over `calls` calls of `forward`; -1 when one fails. The caller
 * keeps `calls` small enough that the device's queue has room: a full one makes the thread wait. */
FERRY_API double call_seconds(forward_function *forward, ferry_layer *layer, const ferry_forward_args *args, int calls);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double call_seconds(forward_function *forward, ferry_layer *layer, const ferry_forward_args *args, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++)
        if (forward(layer, args)) return -1;
    return (now() - start) / calls;
}
