/* SPDX-License-Identifier: Apache-2.0 */
/* Which half of the second-level cache each multiprocessor of a device is near (rules/side.h), found by measuring. */
#ifndef FERRY_CUDA_SIDES_H
#define FERRY_CUDA_SIDES_H

#include "core/status.h"
#include "cuda/call.h"

/* side[number of a multiprocessor]: 0 or 1; all 0 where no two halves are to be seen. The current device is `device`;
 * measured once in a process. */
ferry_status fy_gpu_sides(int device, uint8_t side[FY_GPU_MAX_SMS]);

#endif
