# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, where nvcc is found (FERRY_CUDA=AUTO), demanded (ON) or left out (OFF).
file(GLOB FERRY_CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.c)
