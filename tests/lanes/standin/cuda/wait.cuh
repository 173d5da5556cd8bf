/* SPDX-License-Identifier: Apache-2.0 */
/* The real one: tests/model/standin, which comes before src here, has another, whose waits cost no turns. */
#include "../../../../src/cuda/wait.cuh"
