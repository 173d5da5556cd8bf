/* SPDX-License-Identifier: Apache-2.0 */
/* Host checks of configurations and call arguments: they fail before anything is allocated, moved or enqueued. */
#ifndef FERRY_CORE_CHECK_H
#define FERRY_CORE_CHECK_H

#include "core/layer.h"

/* Ranges of every field, without regard to peers. */
ferry_status fy_check_layer_config(const ferry_layer_config *config, int nranks);
ferry_status fy_check_forward(const ferry_layer *layer, const ferry_forward_args *args);
ferry_status fy_check_backward(const ferry_layer *layer, const ferry_backward_args *args);

#endif
