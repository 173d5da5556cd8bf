/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody was told last, byte for byte, so that it is not told again. All zeros: nothing yet. */
#ifndef FERRY_CORE_TOLD_H
#define FERRY_CORE_TOLD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fy_told {
    unsigned char *bytes;
    size_t size;
} fy_told;

/* Whether the parts (one at least), one behind the other, are what was told last; they are from now on. Without memory
 * to remember them they never are. */
int fy_told_again(fy_told *told, void *const *part, const size_t *size, int parts);

void fy_told_forget(fy_told *told);

#ifdef __cplusplus
}
#endif
#endif
