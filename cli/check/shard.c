/* SPDX-License-Identifier: Apache-2.0 */
/* Making, checking and emptying a rank's tensors. */
#include "cli/check/shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN = 0xffa5, GUARD = 128, GAP = 8 };

/* ---- Buffers ---- */

static void fill(uint16_t *words, int64_t n) {
    for (int64_t i = 0; i < n; i++) words[i] = PATTERN;
}

static check_buffer *add_buffer(check_shard *s, int64_t bytes) {
    int64_t words = (bytes + 127) / 128 * 64 + 2 * GUARD;
    check_buffer *buffer = &s->buffer[s->buffers];
    void *memory = NULL;
    if (posix_memalign(&memory, 256, (size_t)words * sizeof(uint16_t)) != 0) {
        check_fail(s->c, "no memory for a tensor of %lld bytes", (long long)bytes);
        return NULL;
    }
    s->buffers++;
    *buffer = (check_buffer){memory, words, (uint16_t *)memory + GUARD, 0, memory};
    fill(buffer->memory, words);
    if (s->device.ops->in_place) return buffer;
    buffer->twin = cli_device_alloc(&s->device, (size_t)words * sizeof(uint16_t));
    return buffer->twin ? buffer : NULL;
}

/* Every rank asks for the same size, whatever it has. */
static check_buffer *add_symmetric(check_shard *s, int64_t bytes) {
    check_buffer *buffer = &s->buffer[s->buffers];
    void *memory = NULL;
    ferry_status status = ferry_sym_alloc(s->comm, (size_t)bytes, &memory);
    CHECK_OR_RETURN(NULL, s->c, status == FERRY_OK, "ferry_sym_alloc of %lld bytes: %s", (long long)bytes,
                    ferry_last_error());
    s->buffers++;
    *buffer = (check_buffer){memory, bytes / 2, memory, 1, memory};
    fill(buffer->memory, buffer->words);
    return buffer;
}

/* The address of `pointer`, somewhere in a buffer, as calls see it. */
static void *seen(const check_shard *s, const void *pointer) {
    for (int b = 0; b < s->buffers; b++) {
        const check_buffer *buffer = &s->buffer[b];
        const uint16_t *p = pointer;
        if (p >= buffer->memory && p < buffer->memory + buffer->words) return buffer->twin + (p - buffer->memory);
    }
    return NULL;
}

/* All buffers to their twins, or back. */
static int copy_buffers(check_shard *s, int back) {
    int good = 1;
    for (int b = 0; b < s->buffers && good; b++) {
        check_buffer *buffer = &s->buffer[b];
        if (buffer->twin == buffer->memory) continue;
        good = cli_device_copy(&s->device, back ? buffer->memory : buffer->twin, back ? buffer->twin : buffer->memory,
                               (size_t)buffer->words * sizeof(uint16_t));
    }
    if (!good) check_fail(s->c, "rank %d: %s", s->rank, s->device.why);
    return good;
}

int check_shard_wait(check_shard *s) {
    if (cli_device_wait(&s->device)) return 1;
    check_fail(s->c, "rank %d: %s", s->rank, s->device.why);
    return 0;
}

/* ---- Views ---- */

static void *view_row(const check_view *view, int64_t matrix, int64_t row) {
    size_t element = check_dtype_bytes(view->at.dtype);
    char *base = view->at.table ? view->at.table[matrix] : (char *)view->at.base;
    int64_t shift = row * view->at.row_stride + (view->at.table ? 0 : matrix * view->at.expert_stride);
    return base + shift * (int64_t)element;
}

static size_t row_bytes(const check_view *view) { return (size_t)view->columns * check_dtype_bytes(view->at.dtype); }

/* The row's bytes in a global array of the view's dtype. */
static void *global_row(const check_view *view, void *global, int64_t matrix, int64_t row) {
    return (char *)global + (size_t)(view->offset[matrix] + row * view->columns) * check_dtype_bytes(view->at.dtype);
}

static void put(const check_view *view, const void *global) {
    for (int64_t m = 0; m < view->count; m++) {
        for (int64_t r = 0; r < view->rows; r++) {
            memcpy(view_row(view, m, r), global_row(view, (void *)(uintptr_t)global, m, r), row_bytes(view));
        }
    }
}

static void take(const check_view *view, void *global) {
    for (int64_t m = 0; m < view->count; m++) {
        for (int64_t r = 0; r < view->rows; r++) {
            memcpy(global_row(view, global, m, r), view_row(view, m, r), row_bytes(view));
        }
    }
}

static int unchanged(const check_view *view, const void *global) {
    for (int64_t m = 0; m < view->count; m++) {
        for (int64_t r = 0; r < view->rows; r++) {
            const void *from = global_row(view, (void *)(uintptr_t)global, m, r);
            if (memcmp(view_row(view, m, r), from, row_bytes(view)) != 0) return 0;
        }
    }
    return 1;
}

static void erase(const check_view *view) {
    for (int64_t m = 0; m < view->count; m++) {
        for (int64_t r = 0; r < view->rows; r++) fill(view_row(view, m, r), (int64_t)row_bytes(view) / 2);
    }
}

/* Token rows: one matrix. */
static int view_tokens(check_shard *s, check_view *view, ferry_dtype dtype, int64_t columns, int64_t stride,
                       int symmetric) {
    int64_t element = (int64_t)check_dtype_bytes(dtype);
    int64_t most = check_way_max_tokens(s->way, s->batch->problem.tokens);
    check_buffer *buffer =
        symmetric ? add_symmetric(s, most * stride * element + 2) : add_buffer(s, s->tokens * stride * element);
    if (!buffer || !(view->offset = malloc(sizeof *view->offset))) return 0;
    view->at = (ferry_matrices){.base = buffer->body, .row_stride = stride, .dtype = dtype};
    view->count = 1;
    view->rows = s->tokens;
    view->columns = columns;
    view->offset[0] = s->first * columns;
    return 1;
}

/* Matrices of local experts (or the shared one), [rows, columns] each, inside an allotment of `place` elements that
 * begins `shift` elements into the buffer. */
static void place_matrices(check_view *view, check_buffer *buffer, ferry_dtype dtype, int64_t shift, int64_t place,
                           int64_t stride) {
    char *base = (char *)buffer->body + shift * (int64_t)check_dtype_bytes(dtype);
    view->at = (ferry_matrices){.base = base, .expert_stride = place, .row_stride = stride, .dtype = dtype};
}

/* The same matrices as pointers, last expert first. */
static int tabulate(check_shard *s, check_view *view) {
    void **table = malloc((size_t)(view->count + 1) * sizeof *table);
    if (!table) return 0;
    s->tables[s->buffers - 1] = table;
    s->twin_tables[s->buffers - 1] = malloc((size_t)(view->count + 1) * sizeof *table);
    if (!s->twin_tables[s->buffers - 1]) return 0;
    int64_t step = view->at.expert_stride * (int64_t)check_dtype_bytes(view->at.dtype);
    for (int64_t m = 0; m < view->count; m++) table[m] = (char *)view->at.base + (view->count - 1 - m) * step;
    if (view->count > 0) { /* without experts a table would be empty: the base says that it is there */
        view->at.base = NULL;
        view->at.table = table;
    }
    return 1;
}

/* gate, up: [I, H]; down: [H, I]: three views from `view` on. */
static int view_experts(check_shard *s, check_view *view, ferry_dtype dtype) {
    const check_problem *p = &s->batch->problem;
    int64_t element = (int64_t)check_dtype_bytes(dtype), size = p->hidden * p->intermediate;
    for (int i = 0, local = 0; i < 3; i++, local = 0) {
        view[i].count = s->experts;
        view[i].rows = i < 2 ? p->intermediate : p->hidden;
        view[i].columns = i < 2 ? p->hidden : p->intermediate;
        view[i].offset = malloc((size_t)(s->experts + 1) * sizeof *view->offset);
        if (!view[i].offset) return 0;
        for (int64_t e = 0; e < p->experts; e++) {
            if (check_way_expert_rank(s->way, p->experts, e) == s->rank) view[i].offset[local++] = e * size;
        }
    }
    if (s->way->layout == CHECK_FUSED) {
        check_buffer *both = add_buffer(s, s->experts * 2 * size * element);
        if (!both) return 0;
        place_matrices(&view[0], both, dtype, 0, 2 * size, p->hidden);
        place_matrices(&view[1], both, dtype, size, 2 * size, p->hidden);
    }
    for (int i = s->way->layout == CHECK_FUSED ? 2 : 0; i < 3; i++) {
        int64_t stride = view[i].columns + (s->way->layout == CHECK_TABLE ? GAP : 0);
        check_buffer *own = add_buffer(s, s->experts * view[i].rows * stride * element);
        if (!own) return 0;
        place_matrices(&view[i], own, dtype, 0, view[i].rows * stride, stride);
        if (s->way->layout == CHECK_TABLE && !tabulate(s, &view[i])) return 0;
    }
    return 1;
}

/* The shared expert's three, when there is one; `matrix`: which of the global array's matrices they are. */
static int view_shared(check_shard *s, check_view *view, ferry_dtype dtype, int64_t matrix) {
    const check_problem *p = &s->batch->problem;
    for (int i = 0; i < 3 && p->shared > 0; i++) {
        int64_t size = p->shared * p->hidden;
        view[i].count = 1;
        view[i].rows = i < 2 ? p->shared : p->hidden;
        view[i].columns = i < 2 ? p->hidden : p->shared;
        check_buffer *own = add_buffer(s, size * (int64_t)check_dtype_bytes(dtype));
        if (!own || !(view[i].offset = malloc(sizeof *view->offset))) return 0;
        view[i].offset[0] = matrix * size;
        place_matrices(&view[i], own, dtype, 0, size, view[i].columns);
    }
    return 1;
}

/* ---- The shard ---- */

static const void *global_input(const check_batch *batch, int key) {
    const void *const inputs[] = {
        [CHECK_X] = batch->x,
        [CHECK_DOUT] = batch->dout,
        [CHECK_IDS] = batch->ids,
        [CHECK_WEIGHTS] = batch->weights,
        [CHECK_GATE] = batch->gate,
        [CHECK_UP] = batch->up,
        [CHECK_DOWN] = batch->down,
        [CHECK_SHARED_GATE] = batch->shared_gate,
        [CHECK_SHARED_UP] = batch->shared_up,
        [CHECK_SHARED_DOWN] = batch->shared_down,
    };
    return inputs[key];
}

static int make_views(check_shard *s) {
    const check_problem *p = &s->batch->problem;
    int64_t wide = p->hidden + (s->way->padded ? GAP : 0);
    ferry_dtype ids = s->way->ids_dtype ? s->way->ids_dtype : FERRY_I32;
    ferry_dtype gradient = s->way->grad_dtype ? s->way->grad_dtype : FERRY_F32;
    check_view *in = s->input, *out = s->output;
    if (!view_tokens(s, &in[CHECK_X], FERRY_BF16, p->hidden, wide, s->way->symmetric) ||
        !view_tokens(s, &in[CHECK_IDS], ids, p->slots, p->slots, 0) ||
        !view_tokens(s, &in[CHECK_WEIGHTS], FERRY_F32, p->slots, p->slots, 0) ||
        !view_experts(s, &in[CHECK_GATE], FERRY_BF16) || !view_shared(s, &in[CHECK_SHARED_GATE], FERRY_BF16, 0) ||
        !view_tokens(s, &out[CHECK_OUT], FERRY_BF16, p->hidden, wide, 0)) {
        return 0;
    }
    return p->forward_only || (view_tokens(s, &in[CHECK_DOUT], FERRY_BF16, p->hidden, wide, s->way->symmetric) &&
                               view_tokens(s, &out[CHECK_DX], FERRY_BF16, p->hidden, wide, 0) &&
                               view_tokens(s, &out[CHECK_DWEIGHTS], FERRY_F32, p->slots, p->slots, 0) &&
                               view_experts(s, &out[CHECK_DGATE], gradient) &&
                               view_shared(s, &out[CHECK_DSHARED_GATE], gradient, s->rank));
}

/* Ids in the caller's width; the other inputs are in the layer's formats already. */
static void put_ids(check_shard *s) {
    const check_view *view = &s->input[CHECK_IDS];
    if (view->at.dtype == FERRY_I64) {
        put(view, s->batch->ids);
        return;
    }
    const int64_t *from = s->batch->ids + view->offset[0];
    int32_t *to = view->at.base;
    for (int64_t i = 0; i < view->rows * view->columns; i++) to[i] = (int32_t)from[i];
}

static int ids_unchanged(const check_shard *s) {
    const check_view *view = &s->input[CHECK_IDS];
    if (view->at.dtype == FERRY_I64) return unchanged(view, s->batch->ids);
    const int64_t *from = s->batch->ids + view->offset[0];
    const int32_t *now = view->at.base;
    for (int64_t i = 0; i < view->rows * view->columns; i++) {
        if (now[i] != (int32_t)from[i]) return 0;
    }
    return 1;
}

static void put_old_gradients(check_shard *s) {
    for (int id = CHECK_DGATE; id < CHECK_TENSOR_COUNT; id++) {
        const check_view *view = &s->output[id];
        for (int64_t i = 0; i < view->count * view->rows * view->columns; i++) {
            int64_t column = i % view->columns, row = i / view->columns % view->rows;
            int64_t matrix = i / view->columns / view->rows;
            int64_t index = view->offset[matrix] + row * view->columns + column;
            float old = check_old_gradient(&s->batch->problem, s->way, (check_tensor_id)id, index);
            void *to = view_row(view, matrix, row);
            if (view->at.dtype == FERRY_F32)
                ((float *)to)[column] = old;
            else
                ((uint16_t *)to)[column] = check_bf16(old);
        }
    }
}

/* A view's matrices as calls see them. */
static ferry_matrices seen_matrices(check_shard *s, const check_view *view) {
    ferry_matrices at = view->at;
    for (int b = 0; b < s->buffers && at.table; b++) {
        if (s->tables[b] != view->at.table) continue;
        for (int64_t m = 0; m < view->count; m++) s->twin_tables[b][m] = seen(s, s->tables[b][m]);
        at.table = s->twin_tables[b];
        return at;
    }
    if (at.base) at.base = seen(s, at.base);
    return at;
}

static void make_arguments(check_shard *s) {
    const check_problem *p = &s->batch->problem;
    int64_t stride = s->way->padded ? p->hidden + GAP : 0;
    const check_view *in = s->input, *out = s->output;
    ferry_weights params = {
        .gate = seen_matrices(s, &in[CHECK_GATE]),
        .up = seen_matrices(s, &in[CHECK_UP]),
        .down = seen_matrices(s, &in[CHECK_DOWN]),
        .shared_gate = seen_matrices(s, &in[CHECK_SHARED_GATE]),
        .shared_up = seen_matrices(s, &in[CHECK_SHARED_UP]),
        .shared_down = seen_matrices(s, &in[CHECK_SHARED_DOWN]),
    };
    s->num_tokens = (int32_t)s->tokens;
    ferry_forward_args_init(&s->forward);
    s->forward.num_tokens = &s->num_tokens;
    s->forward.stream = s->device.stream;
    s->forward.x = seen(s, in[CHECK_X].at.base);
    s->forward.x_stride = stride;
    s->forward.ids = seen(s, in[CHECK_IDS].at.base);
    s->forward.ids_dtype = in[CHECK_IDS].at.dtype;
    s->forward.weights = seen(s, in[CHECK_WEIGHTS].at.base);
    s->forward.params = params;
    s->forward.out = seen(s, out[CHECK_OUT].at.base);
    s->forward.out_stride = stride;
    if (p->forward_only) return;
    float beta = s->way->beta;
    ferry_backward_args_init(&s->backward);
    s->backward.parts = FERRY_BACKWARD_ALL;
    s->backward.stream = s->device.stream;
    s->backward.dout = seen(s, in[CHECK_DOUT].at.base);
    s->backward.dout_stride = stride;
    s->backward.params = params;
    s->backward.dx = seen(s, out[CHECK_DX].at.base);
    s->backward.dx_stride = stride;
    s->backward.dweights = seen(s, out[CHECK_DWEIGHTS].at.base);
    s->backward.grads = (ferry_gradients){
        .gate = {seen_matrices(s, &out[CHECK_DGATE]), beta},
        .up = {seen_matrices(s, &out[CHECK_DUP]), beta},
        .down = {seen_matrices(s, &out[CHECK_DDOWN]), beta},
        .shared_gate = {seen_matrices(s, &out[CHECK_DSHARED_GATE]), beta},
        .shared_up = {seen_matrices(s, &out[CHECK_DSHARED_UP]), beta},
        .shared_down = {seen_matrices(s, &out[CHECK_DSHARED_DOWN]), beta},
    };
}

int check_shard_make(const check_case *c, const check_batch *batch, const check_way *way, int rank, ferry_comm *comm,
                     check_shard *s) {
    const check_problem *p = &batch->problem;
    *s = (check_shard){.c = c, .batch = batch, .way = way, .comm = comm, .rank = rank};
    s->tokens = check_way_tokens(way, p->tokens, rank);
    s->first = check_way_first(way, p->tokens, rank);
    for (int64_t e = 0; e < p->experts; e++) s->experts += check_way_expert_rank(way, p->experts, e) == rank;
    int opened = cli_device_open(&s->device, way->backend, rank);
    if (!opened || !make_views(s)) {
        check_fail(c, "no memory for the tensors of rank %d: %s", rank, s->device.why);
        check_shard_free(s);
        return 0;
    }
    for (int key = 0; key < CHECK_SHARD_INPUTS; key++) {
        if (key == CHECK_IDS)
            put_ids(s);
        else if (s->input[key].count)
            put(&s->input[key], global_input(batch, key));
    }
    if (way->beta > 0) put_old_gradients(s);
    make_arguments(s);
    int placed = copy_buffers(s, 0);
    /* While a peer's call waits for this rank on a GPU that they share, nothing that could wait for it may come. */
    if (placed && comm && !s->device.ops->in_place && ferry_barrier(comm)) {
        check_fail(c, "rank %d: ferry_barrier: %s", rank, ferry_last_error());
        placed = 0;
    }
    if (placed) return 1;
    check_shard_free(s);
    return 0;
}

/* An input must be as it was made; then it becomes pattern. */
static void retire(check_shard *s, int key) {
    const check_view *view = &s->input[key];
    if (!view->count) return;
    int same = key == CHECK_IDS ? ids_unchanged(s) : unchanged(view, global_input(s->batch, key));
    if (!same) check_fail(s->c, "rank %d: a call wrote to input number %d", s->rank, key);
    erase(view);
}

void check_shard_forget(check_shard *s) {
    if (!copy_buffers(s, 1)) return;
    retire(s, CHECK_X);
    retire(s, CHECK_IDS);
    retire(s, CHECK_WEIGHTS);
    copy_buffers(s, 0);
}

int check_shard_untouched(check_shard *s) {
    if (!copy_buffers(s, 1)) return 0;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) {
        const check_view *view = &s->output[id];
        for (int64_t i = 0; i < view->count * view->rows; i++) {
            const uint16_t *row = view_row(view, i / view->rows, i % view->rows);
            for (size_t j = 0; j < row_bytes(view) / 2; j++) {
                if (row[j] != PATTERN) return 0;
            }
        }
    }
    return 1;
}

void check_shard_gather(check_shard *s, check_result *result) {
    if (!copy_buffers(s, 1)) return;
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) take(&s->output[id], result->tensor[id].data);
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) erase(&s->output[id]);
    for (int key = 0; key < CHECK_SHARD_INPUTS; key++) {
        if (key != CHECK_X && key != CHECK_IDS && key != CHECK_WEIGHTS) retire(s, key);
    }
    copy_buffers(s, 0);
    for (int b = 0; b < s->buffers; b++) {
        const check_buffer *buffer = &s->buffer[b];
        for (int64_t i = 0; i < buffer->words; i++) {
            CHECK_OR_RETURN(, s->c, buffer->memory[i] == PATTERN,
                            "rank %d: memory beside a tensor was written: buffer %d of %lld bytes, byte %lld", s->rank,
                            b, (long long)((buffer->words - 2 * GUARD) * 2),
                            (long long)((buffer->memory + i - buffer->body) * 2));
        }
    }
}

void check_shard_free(check_shard *s) {
    for (int b = 0; b < s->buffers; b++) {
        if (s->buffer[b].symmetric)
            ferry_sym_free(s->comm, s->buffer[b].memory);
        else
            free(s->buffer[b].memory);
        free(s->tables[b]);
        free(s->twin_tables[b]);
    }
    for (int key = 0; key < CHECK_SHARD_INPUTS; key++) free(s->input[key].offset);
    for (int id = 0; id < CHECK_TENSOR_COUNT; id++) free(s->output[id].offset);
    cli_device_close(&s->device);
    *s = (check_shard){0};
}
