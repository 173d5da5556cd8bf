/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for the CUDA driver's header of this name: no CUDA toolkit is needed. All that the device code wants of it is
 * the type of a tensor map. Here a map says itself what lies behind it: tags (memory.h), and what one copy moves.
 */
#ifndef FERRY_MODEL_STANDIN_CUDA_H
#define FERRY_MODEL_STANDIN_CUDA_H

struct tag_memory;

typedef struct CUtensorMap {
    const struct tag_memory *from; /* NULL: of no interest, as weights */
    int bytes;                     /* of one copy; 0: nobody has made this map */
    int boxes;                     /* of 64 rows, one below the other */
} CUtensorMap;

#endif
