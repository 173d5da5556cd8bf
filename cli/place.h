/* SPDX-License-Identifier: Apache-2.0 */
/* Where a command may leave a file: asked before its work, so that nothing of somebody else is replaced after it. */
#ifndef FERRY_CLI_PLACE_H
#define FERRY_CLI_PLACE_H

#include "cli/safetensors.h"

/* What a file has to be so that another of its kind may take its place. */
typedef struct place_kind {
    const char *name;                           /* for messages: "routing file" */
    const char *beginning;                      /* of a text; NULL: a safetensors file */
    int (*holds)(const safetensors_file *file); /* then: whether it is one of the kind; NULL: any */
} place_kind;

/*
 * The path has to name something, its folder to take new names, and what is there to be an empty file or one of the
 * kind. 0, or the exit code after a message that begins with `what`: "--save".
 */
int place_check(const char *what, const char *path, const place_kind *kind);

#endif
