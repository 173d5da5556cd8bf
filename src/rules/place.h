/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what: experts and tokens over ranks in contiguous blocks, the first ones larger by one. */
#ifndef FERRY_RULES_PLACE_H
#define FERRY_RULES_PLACE_H

#include "rules/rule.h"

#include <stdint.h>

/* Items of block `index` when `items` are split into `blocks`. */
FY_RULE int64_t fy_split_size(int64_t items, int64_t blocks, int64_t index) {
    return items / blocks + (index < items % blocks ? 1 : 0);
}

/* First item of block `index`. */
FY_RULE int64_t fy_split_first(int64_t items, int64_t blocks, int64_t index) {
    int64_t more = items % blocks;
    return index * (items / blocks) + (index < more ? index : more);
}

/* The block that holds item `item`. */
FY_RULE int64_t fy_split_owner(int64_t items, int64_t blocks, int64_t item) {
    int64_t small = items / blocks, more = items % blocks, boundary = more * (small + 1);
    return item < boundary ? item / (small + 1) : more + (item - boundary) / small;
}

/* An id as the layer uses it: -1 for no expert, also for anything out of range; *bad is set for the latter. */
FY_RULE int32_t fy_clean_id(int64_t id, int64_t experts, int *bad) {
    *bad = id < -1 || id >= experts;
    return *bad ? -1 : (int32_t)id;
}

#endif
