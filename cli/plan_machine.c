/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates from a description in JSON, where a measured one goes before the peak, or measured here by bench_product.c,
 * half a second each for product and copy. For plan.c and bench_cuda_report.c.
 */
#include "cli/plan_machine.h"

#include "cli/bench_product.h"
#include "cli/data_file.h"
#include "cli/machine.h"
#include "cli/message.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Descriptions ---- */

/* A path, or the name of a description that comes along. */
static int find_file(const char *name, char *path, size_t room) {
    char file[256];
    if (strchr(name, '/') || strchr(name, '.')) {
        snprintf(path, room, "%s", name);
        return access(path, R_OK) == 0;
    }
    snprintf(file, sizeof file, "machines/%s.json", name);
    return cli_data_file(file, path, room);
}

/* The measured rate, else the peak. 0 where the file gives neither. */
static int read_rate(const json_t *object, const char *key, machine_rate *rate) {
    char peak[64];
    snprintf(peak, sizeof peak, "peak_%s", key);
    double measured = json_number_value(json_object_get(object, key));
    rate->measured = measured > 0;
    rate->per_s = rate->measured ? measured : json_number_value(json_object_get(object, peak));
    return rate->per_s > 0;
}

static int read_description(const json_t *object, const char *path, machine *m) {
    const char *name = json_string_value(json_object_get(object, "name"));
    m->processors = (int64_t)json_number_value(json_object_get(object, "processors"));
    if (!name || m->processors < 1)
        return cli_fail("%s: a machine needs a \"name\" and \"processors\", at least 1", path);
    snprintf(m->name, sizeof m->name, "%s", name);
    if (!read_rate(object, "product_flop_per_s", &m->product) || !read_rate(object, "copy_bytes_per_s", &m->copy) ||
        !read_rate(object, "link_bytes_per_s", &m->link))
        return cli_fail("%s: a machine needs product_flop_per_s, copy_bytes_per_s and link_bytes_per_s, or peak_ of it",
                        path);
    return CLI_OK;
}

static int read_file(const char *name, machine *m) {
    char path[4096];
    if (!find_file(name, path, sizeof path))
        return cli_usage(
            "--machine: '%s' is neither 'this' nor a description in data/machines (h200, h100, gb300) nor a "
            "file of that form",
            name);
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    if (!object)
        return cli_fail("%s: not a machine description, which is JSON of the form of data/machines: line %d: %s", path,
                        error.line, error.text);
    int code = read_description(object, path, m);
    json_decref(object);
    return code;
}

/* ---- This machine ---- */

static int measure(int ranks, machine *m) {
    m->is_this = 1;
    m->processors = machine_processors();
    machine_processor_name(m->name, sizeof m->name);
    double product = bench_product_quick((int)m->processors), copy = bench_copy_quick((int)m->processors);
    if (product <= 0 || copy <= 0) return cli_fail("no memory to measure this machine");
    /* Ranks share the cores and the memory. What crosses between them is read and written by the same copies. */
    m->product = (machine_rate){product / ranks, 1};
    m->copy = (machine_rate){copy / ranks, 1};
    m->link = (machine_rate){copy / 2 / ranks, 1};
    return CLI_OK;
}

int machine_find(const char *name, int ranks, machine *m) {
    *m = (machine){.name = ""};
    return strcmp(name, "this") == 0 ? measure(ranks, m) : read_file(name, m);
}
