# SPDX-License-Identifier: Apache-2.0
# libbench_gpu.so: what the Python benchmarks call beside the library. Built when asked for.
add_library(bench_gpu SHARED EXCLUDE_FROM_ALL bench/gpu/plain_product.c bench/gpu/call_seconds.c cli/bench_plain.cu)
target_include_directories(bench_gpu PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(bench_gpu SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(bench_gpu PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:$<TARGET_PROPERTY:ferry_cuda,COMPILE_OPTIONS>>)
target_link_libraries(bench_gpu PRIVATE ferry_static)
set_target_properties(bench_gpu PROPERTIES LINKER_LANGUAGE C CUDA_ARCHITECTURES OFF)
# The library's own symbols stay inside.
target_link_options(bench_gpu PRIVATE LINKER:--exclude-libs,ALL)
