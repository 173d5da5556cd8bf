/* SPDX-License-Identifier: Apache-2.0 */
/* `ferry info`: this build, this machine, and what is missing. The JSON object is made first; the text is its print. */
#include "cli/commands.h"
#include "cli/gpus.h"
#include "cli/machine.h"
#include "cli/message.h"
#include "cli/mpi.h"
#include "cli/options.h"
#include "lm/outer_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct info_options {
    int64_t json;
} info_options;

static const cli_option options[] = {
    {.name = "json", .kind = CLI_FLAG, .at = offsetof(info_options, json), .help = "print one JSON object"}, {0}};

static const cli_command command = {
    .name = "info",
    .about =
        "Says what this build and this machine can do: version, compiler, processor and instruction sets, shared "
        "memory, GPUs and which of them reach each other, what joins the nodes of a training, and what is missing.",
    .options = options,
    .examples = "ferry info\nferry info --json"};

/* Below this, ranks as processes run short of shared memory soon. */
static const int64_t small_shm_bytes = 64 << 20;

static const char *const features[] = {"avx2",     "fma",      "avx512f",     "avx512bw",
                                       "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16"};

static json_t *build_json(void) {
    return json_pack("{s:s,s:s,s:b}", "compiler", FERRY_COMPILER, "type", FERRY_BUILD_TYPE, "cuda",
                     machine_built_with_cuda());
}

static json_t *cpu_json(void) {
    char name[128];
    machine_processor_name(name, sizeof name);
    json_t *found = json_array(), *sets = json_array();
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        if (machine_has_feature(features[i])) json_array_append_new(found, json_string(features[i]));
    }
    for (int isa = FERRY_ISA_PORTABLE; isa <= FERRY_ISA_AVX512; isa++) {
        const char *usable = machine_isa_name((ferry_isa)isa);
        if (usable) json_array_append_new(sets, json_string(usable));
    }
    return json_pack("{s:s,s:i,s:o,s:o,s:s}", "name", name, "processors", machine_processors(), "features", found,
                     "isas", sets, "isa", machine_isa_name(FERRY_ISA_AUTO));
}

static json_t *gpus_json(const gpu_list *list) {
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++) {
        const gpu_info *gpu = &list->gpu[i];
        json_t *peers = json_array();
        for (int peer = 0; peer < list->count; peer++) {
            if (gpu->peer[peer]) json_array_append_new(peers, json_integer(peer));
        }
        char capability[32];
        snprintf(capability, sizeof capability, "%d.%d", gpu->major, gpu->minor);
        json_array_append_new(array, json_pack("{s:s,s:I,s:s,s:i,s:o}", "name", gpu->name, "memory_bytes",
                                               (json_int_t)gpu->memory_bytes, "compute_capability", capability,
                                               "multiprocessors", gpu->processors, "reaches", peers));
    }
    return array;
}

static void add_missing(json_t *missing, const char *sentence) {
    json_array_append_new(missing, json_string(sentence));
}

/* What joins nodes: its version, or why it is not there. */
typedef struct join_info {
    int found;
    char text[256];
} join_info;

static void add_join(json_t *missing, const join_info *join, const char *use) {
    char sentence[384];
    snprintf(sentence, sizeof sentence, "%s: %s", use, join->text);
    if (!join->found) add_missing(missing, sentence);
}

static json_t *join_json(const join_info *join) { return join->found ? json_string(join->text) : json_null(); }

static json_t *missing_json(const gpu_list *gpus, int64_t shm, const join_info *mpi, const join_info *nccl) {
    json_t *missing = json_array();
    if (!machine_built_with_cuda()) add_missing(missing, "the CUDA backend: not in this build");
    if (gpus->count == 0) add_missing(missing, gpus->absent);
    if (strcmp(machine_isa_name(FERRY_ISA_AUTO), "avx512") != 0) {
        add_missing(missing, "AVX-512: products use the next best instruction set, with the same bits");
    }
    if (shm < 0) {
        add_missing(missing, "/dev/shm: ranks can only be threads");
    } else if (shm < small_shm_bytes) {
        add_missing(missing, "room in /dev/shm: ranks as processes will run short; mount it larger or use threads");
    }
    add_join(missing, mpi, "MPI, for a training on several machines");
    if (gpus->count > 0) add_join(missing, nccl, "NCCL, for GPUs of several nodes");
    return missing;
}

static json_t *info_json(void) {
    gpu_list gpus;
    gpu_list_read(&gpus);
    int64_t shm = machine_shm_free();
    join_info mpi, nccl;
    mpi.found = cli_mpi_find(mpi.text, sizeof mpi.text);
    nccl.found = lm_nccl_find(nccl.text, sizeof nccl.text);
    return json_pack("{s:s,s:o,s:o,s:I,s:i,s:o,s:o,s:o,s:o}", "version", ferry_version(), "build", build_json(), "cpu",
                     cpu_json(), "shm_free_bytes", (json_int_t)shm, "cuda_driver", gpus.driver, "gpus",
                     gpus_json(&gpus), "mpi", join_json(&mpi), "nccl", join_json(&nccl), "missing",
                     missing_json(&gpus, shm, &mpi, &nccl));
}

/* ---- Text ---- */

static const char *string_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void print_words(const char *label, const json_t *array) {
    size_t i;
    json_t *word;
    printf("%-14s", label);
    json_array_foreach(array, i, word) printf("%s%s", i ? " " : "", json_string_value(word));
    printf("%s\n", json_array_size(array) ? "" : "none");
}

static void print_gpus(const json_t *gpus) {
    size_t i, k;
    json_t *gpu, *peer;
    json_array_foreach(gpus, i, gpu) {
        printf("gpu %-10zu%s, %.1f GB, compute capability %s, %lld multiprocessors; reaches:", i,
               string_at(gpu, "name"), 1e-9 * (double)json_integer_value(json_object_get(gpu, "memory_bytes")),
               string_at(gpu, "compute_capability"),
               (long long)json_integer_value(json_object_get(gpu, "multiprocessors")));
        json_array_foreach(json_object_get(gpu, "reaches"), k, peer)
            printf(" %lld", (long long)json_integer_value(peer));
        printf("%s\n", json_array_size(json_object_get(gpu, "reaches")) ? "" : " no other");
    }
}

static void print_join(const char *key, const json_t *info) {
    const char *found = string_at(info, key);
    printf("%-14s%s\n", key, found ? found : "none");
}

static int print_text(const json_t *info) {
    const json_t *build = json_object_get(info, "build"), *cpu = json_object_get(info, "cpu");
    size_t i;
    json_t *sentence;
    printf("%-14s%s\n", "ferry", string_at(info, "version"));
    printf("%-14s%s, %s, CUDA backend: %s\n", "build", string_at(build, "compiler"), string_at(build, "type"),
           json_is_true(json_object_get(build, "cuda")) ? "yes" : "no");
    printf("%-14s%s, %lld processors\n", "cpu", string_at(cpu, "name"),
           (long long)json_integer_value(json_object_get(cpu, "processors")));
    print_words("features", json_object_get(cpu, "features"));
    print_words("kernels", json_object_get(cpu, "isas"));
    printf("%-14s%s\n", "chosen", string_at(cpu, "isa"));
    printf("%-14s%.1f MB free\n", "/dev/shm",
           1e-6 * (double)json_integer_value(json_object_get(info, "shm_free_bytes")));
    print_gpus(json_object_get(info, "gpus"));
    print_join("mpi", info);
    print_join("nccl", info);
    json_array_foreach(json_object_get(info, "missing"), i, sentence) {
        printf("%-14s%s\n", "missing", json_string_value(sentence));
    }
    return fflush(stdout) == 0 ? CLI_OK : cli_fail("cannot write to standard output");
}

int ferry_cmd_info(int argc, char **argv) {
    info_options o = {.json = 0};
    int code;
    if (!cli_parse(&command, argc, argv, &o, NULL, &code)) return code;
    json_t *info = info_json();
    if (o.json || !info) return cli_print_json(info);
    code = print_text(info);
    json_decref(info);
    return code;
}
