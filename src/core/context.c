/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: what a forward leaves for its backward, in memory of the layer or of the caller. */
#include "core/layer.h"

ferry_status ferry_context_create(ferry_layer *layer, void *memory, ferry_context **out) {
    if (layer == NULL || out == NULL) return fy_fail(FERRY_E_INVALID, "ferry_context_create: layer or context is NULL");
    if ((uintptr_t)memory % 256 != 0)
        return fy_fail(FERRY_E_INVALID, "ferry_context_create: memory at %p is not aligned to 256 bytes", memory);
    fy_memory *counted = &layer->comm->memory;
    ferry_context *context;
    FY_TRY(fy_alloc(counted, sizeof *context, "a context", (void **)&context));
    context->layer = layer;
    context->memory = memory;
    context->owned = memory == NULL;
    ferry_status status = fy_backend_of(layer->comm->config.backend)->context_create(context);
    if (status != FERRY_OK) {
        fy_free(counted, context, sizeof *context);
        return status;
    }
    *out = context;
    return FERRY_OK;
}

void ferry_context_clear(ferry_context *context) {
    if (context) context->phase = FY_CONTEXT_EMPTY;
}

void ferry_context_destroy(ferry_context *context) {
    if (context == NULL) return;
    ferry_layer *layer = context->layer;
    fy_backend_of(layer->comm->config.backend)->context_destroy(context);
    fy_free(&layer->comm->memory, context, sizeof *context);
}
