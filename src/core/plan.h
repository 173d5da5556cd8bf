/* SPDX-License-Identifier: Apache-2.0 */
/* From a configuration to a shape (sizes chosen, rows rounded) and a plan (bytes). Pure. */
#ifndef FERRY_CORE_PLAN_H
#define FERRY_CORE_PLAN_H

#include "core/layer.h"

/* The rank of an expert: by the caller's map, or contiguous. */
int32_t fy_rank_of_expert(const ferry_layer_config *config, int nranks, int64_t expert);
/* Bytes of the layer struct with its maps. */
size_t fy_layer_own_bytes(const fy_shape *shape);
/* `config` has been checked. Workers are at least 1. */
ferry_status fy_plan(const ferry_layer_config *config, const fy_backend *backend, int rank, int nranks,
                     int comm_workers, int compute_workers, fy_shape *shape, ferry_plan *plan);

#endif
