/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a layer's inputs from a file: names, dtypes and shapes must agree before anything is computed. */
#include "cli/message.h"
#include "cli/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const input_names[] = {
    "x", "ids", "weights", "gate", "up", "down", "dout", "shared_gate", "shared_up", "shared_down", "tokens_per_rank"};

/* "[8, 64]" */
static const char *shape_text(const int64_t *shape, int dims, char *to, size_t room) {
    size_t used = (size_t)snprintf(to, room, "[");
    for (int d = 0; d < dims; d++) {
        used += (size_t)snprintf(to + used, room - used, "%s%" PRId64, d ? ", " : "", shape[d]);
    }
    snprintf(to + used, room - used, "]");
    return to;
}

/* An input's expected shape: `letters` names the extents for the message, "NHK...", one letter each. */
typedef struct expected {
    const char *name, *letters;
    safetensors_dtype dtype, other_dtype; /* either will do */
    int64_t shape[3];                     /* -1: not known yet; any value */
} expected;

static int check_tensor(const run_options *options, const safetensors_tensor *tensor, const expected *want) {
    char found[192], symbols[32], needed[192];
    if (tensor->dtype != want->dtype && tensor->dtype != want->other_dtype) {
        const char *other = want->other_dtype == want->dtype ? "" : safetensors_dtype_name(want->other_dtype);
        return cli_fail("%s: tensor '%s' is %s; expected %s%s%s", options->in, want->name,
                        safetensors_dtype_name(tensor->dtype), safetensors_dtype_name(want->dtype),
                        *other ? " or " : "", other);
    }
    int dims = (int)strlen(want->letters), known = 1, good = tensor->dims == dims;
    size_t used = 0;
    for (int d = 0; d < dims; d++) {
        used += (size_t)snprintf(symbols + used, sizeof symbols - used, "%s%c", d ? "," : "", want->letters[d]);
        known &= want->shape[d] >= 0;
        good = good && (want->shape[d] < 0 || tensor->shape[d] == want->shape[d]);
    }
    if (good) return CLI_OK;
    return cli_fail("%s: tensor '%s' has shape %s; expected [%s]%s%s", options->in, want->name,
                    shape_text(tensor->shape, tensor->dims, found, sizeof found), symbols, known ? " = " : "",
                    known ? shape_text(want->shape, dims, needed, sizeof needed) : "");
}

/* Finds a tensor and checks it. `found` stays NULL, without a message, when it is absent and not `required`. */
static int get(const run_problem *p, const run_options *options, expected want, int required,
               const safetensors_tensor **found) {
    const safetensors_tensor *tensor = safetensors_find(p->file, want.name);
    *found = tensor;
    if (!tensor) return required ? cli_fail("%s: tensor '%s' is missing", options->in, want.name) : CLI_OK;
    return check_tensor(options, tensor, &want);
}

static int get_data(const run_problem *p, const run_options *options, expected want, int required, const void **data) {
    const safetensors_tensor *tensor;
    int code = get(p, options, want, required, &tensor);
    if (!code) *data = tensor ? tensor->data : NULL;
    return code;
}

#define BF16_SHAPED(name, letters, ...) ((expected){name, letters, SAFETENSORS_BF16, SAFETENSORS_BF16, {__VA_ARGS__}})

static int read_tokens(run_problem *p, const run_options *options) {
    const safetensors_tensor *x, *ids;
    int code = get(p, options, BF16_SHAPED("x", "NH", -1, -1), 1, &x);
    if (code) return code;
    p->x = x->data;
    p->tokens = x->shape[0];
    p->hidden = x->shape[1];
    code = get(p, options, (expected){"ids", "NK", SAFETENSORS_I32, SAFETENSORS_I64, {p->tokens, -1}}, 1, &ids);
    if (code) return code;
    p->ids = ids->data;
    p->ids_dtype = ids->dtype == SAFETENSORS_I64 ? FERRY_I64 : FERRY_I32;
    p->slots = ids->shape[1];
    code = get_data(p, options, (expected){"weights", "NK", SAFETENSORS_F32, SAFETENSORS_F32, {p->tokens, p->slots}}, 1,
                    &p->weights);
    return code ? code : get_data(p, options, BF16_SHAPED("dout", "NH", p->tokens, p->hidden), 0, &p->dout);
}

static int read_experts(run_problem *p, const run_options *options) {
    const safetensors_tensor *gate;
    int code = get(p, options, BF16_SHAPED("gate", "EIH", -1, -1, p->hidden), 1, &gate);
    if (code) return code;
    p->gate = gate->data;
    int64_t e = p->experts = gate->shape[0], i = p->intermediate = gate->shape[1], h = p->hidden;
    code = get_data(p, options, BF16_SHAPED("up", "EIH", e, i, h), 1, &p->up);
    return code ? code : get_data(p, options, BF16_SHAPED("down", "EHI", e, h, i), 1, &p->down);
}

static int read_shared(run_problem *p, const run_options *options) {
    static const char *const names[] = {"shared_gate", "shared_up", "shared_down"};
    for (int i = 0; i < 3; i++) p->has_shared |= safetensors_find(p->file, names[i]) != NULL;
    if (!p->has_shared) return CLI_OK;
    const safetensors_tensor *gate;
    int code = get(p, options, BF16_SHAPED("shared_gate", "SH", -1, p->hidden), 1, &gate);
    if (code) return code;
    p->shared_gate = gate->data;
    int64_t s = p->shared = gate->shape[0];
    code = get_data(p, options, BF16_SHAPED("shared_up", "SH", s, p->hidden), 1, &p->shared_up);
    return code ? code : get_data(p, options, BF16_SHAPED("shared_down", "HS", p->hidden, s), 1, &p->shared_down);
}

static int check_extents(const run_problem *p, const run_options *options) {
    const struct {
        const char *what;
        int64_t extent;
    } least_one[] = {{"H (hidden size)", p->hidden},
                     {"I (intermediate size)", p->intermediate},
                     {"E (experts)", p->experts},
                     {"K (slots)", p->slots}};
    for (size_t i = 0; i < sizeof least_one / sizeof *least_one; i++) {
        if (least_one[i].extent < 1)
            return cli_fail("%s: %s is 0; at least 1 is needed", options->in, least_one[i].what);
    }
    return CLI_OK;
}

/* The number of ranks, and which tokens each one has. */
static int split_tokens(run_problem *p, const run_options *options) {
    const safetensors_tensor *given;
    int code = get(p, options, (expected){"tokens_per_rank", "R", SAFETENSORS_I32, SAFETENSORS_I32, {-1}}, 0, &given);
    if (code) return code;
    if (given && options->ranks && options->ranks != given->shape[0]) {
        return cli_usage("--ranks %" PRId64 " contradicts tokens_per_rank in %s, which is for %" PRId64 " ranks",
                         options->ranks, options->in, given->shape[0]);
    }
    int64_t ranks = given ? given->shape[0] : options->ranks ? options->ranks : 1;
    if (ranks < 1 || ranks > KNOB_MAX_RANKS) {
        return cli_fail("%s: tokens_per_rank is for %" PRId64 " ranks; expected 1 to %d", options->in, ranks,
                        KNOB_MAX_RANKS);
    }
    p->nranks = (int)ranks;
    p->first_token = calloc((size_t)ranks + 1, sizeof *p->first_token);
    if (!p->first_token) return cli_fail("no memory for %" PRId64 " ranks", ranks);
    for (int r = 0; r < p->nranks; r++) {
        int64_t n = given ? ((const int32_t *)given->data)[r] : p->tokens / ranks + (r < p->tokens % ranks);
        if (n < 0) return cli_fail("%s: tokens_per_rank gives rank %d %" PRId64 " tokens", options->in, r, n);
        p->first_token[r + 1] = p->first_token[r] + n;
        if (n > INT32_MAX)
            return cli_fail("%s: rank %d would have %" PRId64 " tokens; use more ranks", options->in, r, n);
        if (n > p->max_tokens) p->max_tokens = n;
    }
    if (p->first_token[ranks] != p->tokens) {
        return cli_fail("%s: tokens_per_rank adds up to %" PRId64 " tokens, but x has %" PRId64, options->in,
                        p->first_token[ranks], p->tokens);
    }
    return CLI_OK;
}

static void note_unknown(const run_problem *p, const run_options *options) {
    for (size_t i = 0; i < safetensors_count(p->file); i++) {
        const char *name = safetensors_at(p->file, i)->name;
        int known = 0;
        for (size_t k = 0; k < sizeof input_names / sizeof *input_names; k++) known |= !strcmp(name, input_names[k]);
        if (!known) cli_note("%s: tensor '%.64s' is not an input of a layer; ignored", options->in, name);
    }
}

int run_problem_open(run_problem *problem, const run_options *options) {
    char error[SAFETENSORS_ERROR_BYTES];
    *problem = (run_problem){0};
    if (safetensors_open(options->in, &problem->file, error)) return cli_fail("%s", error);
    int code = read_tokens(problem, options);
    if (!code) code = read_experts(problem, options);
    if (!code) code = read_shared(problem, options);
    if (!code) code = check_extents(problem, options);
    if (!code) code = split_tokens(problem, options);
    if (!code) note_unknown(problem, options);
    return code;
}

ferry_layer_config run_problem_config(const run_problem *problem) {
    ferry_layer_config config;
    ferry_layer_config_init(&config);
    config.hidden = problem->hidden;
    config.intermediate = problem->intermediate;
    config.shared = problem->shared;
    config.experts = problem->experts;
    config.slots = problem->slots;
    config.max_tokens = problem->max_tokens;
    return config;
}

void run_problem_close(run_problem *problem) {
    safetensors_close(problem->file);
    free(problem->first_token);
}
