/* SPDX-License-Identifier: Apache-2.0 */
#include "core/told.h"

#include <stdlib.h>
#include <string.h>

static int is_told(const fy_told *told, void *const *part, const size_t *size, int parts) {
    const unsigned char *at = told->bytes;
    for (int i = 0; i < parts; i++) {
        if (memcmp(at, part[i], size[i]) != 0) return 0;
        at += size[i];
    }
    return 1;
}

int fy_told_again(fy_told *told, void *const *part, const size_t *size, int parts) {
    size_t all = 0;
    for (int i = 0; i < parts; i++) all += size[i];
    if (all == told->size && is_told(told, part, size, parts)) return 1;
    if (all != told->size) {
        fy_told_forget(told);
        told->bytes = malloc(all);
        if (told->bytes == NULL) return 0;
        told->size = all;
    }
    unsigned char *to = told->bytes;
    for (int i = 0; i < parts; i++) {
        memcpy(to, part[i], size[i]);
        to += size[i];
    }
    return 0;
}

void fy_told_forget(fy_told *told) {
    free(told->bytes);
    told->bytes = NULL;
    told->size = 0;
}
