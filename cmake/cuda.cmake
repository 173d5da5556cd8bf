# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, where nvcc is found (FERRY_CUDA=AUTO), demanded (ON) or left out (OFF). The CUDA runtime is linked
# statically and the driver found at run time: the library then also starts where there is no GPU.
find_program(FERRY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(FERRY_CUDA STREQUAL "ON" AND NOT FERRY_NVCC)
  message(FATAL_ERROR "FERRY_CUDA=ON, but nvcc was not found (looked in CUDA_HOME, /usr/local/cuda and PATH)")
elseif(FERRY_CUDA STREQUAL "OFF" OR NOT FERRY_NVCC)
  message(STATUS "CUDA backend: left out")
else()
  message(STATUS "CUDA backend: ${FERRY_NVCC}")
  set(CMAKE_CUDA_COMPILER ${FERRY_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_STANDARD 17)
  # The host side of kernel files needs nothing of the C++ runtime, so that C programs link as ever.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # A kernel that multiplies step by step does not build, nor such a plain product, by whose rate others are judged.
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/tools/strict_nvcc.sh)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB FERRY_CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.c)
  add_library(ferry_cuda OBJECT ${FERRY_CUDA_SOURCES})
  target_link_libraries(ferry_cuda PRIVATE ferry_flags)
  target_include_directories(ferry_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  # A kernel that spills registers or uses local memory does not build.
  target_compile_options(ferry_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a
    --fmad=false -lineinfo -Xcompiler=-fvisibility=hidden,-fPIC,-fno-exceptions,-fno-threadsafe-statics
    -Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error>)
  target_compile_definitions(ferry_objects PUBLIC FERRY_HAVE_CUDA)
  foreach(library ferry_static ferry_shared)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:ferry_cuda>)
    target_compile_definitions(${library} PUBLIC FERRY_HAVE_CUDA)
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C CUDA_ARCHITECTURES OFF)
  endforeach()
  # Programs of bench/gpu, built when asked for: tools/gpu_all.sh runs them.
  foreach(program forward_lab:cu backward_lab:cu api_check:c backward_check:c sym_check:c)
    string(REPLACE ":" ";" program ${program})
    list(GET program 0 name)
    list(GET program 1 language)
    add_executable(${name} EXCLUDE_FROM_ALL bench/gpu/${name}.${language})
    target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(${name} PRIVATE ferry_static)
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a>)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF)
  endforeach()
  target_sources(backward_lab PRIVATE cli/bench_plain.cu)
  target_include_directories(backward_lab PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(ferry_static PUBLIC CUDA::cudart_static)
  target_link_libraries(ferry_shared PRIVATE CUDA::cudart_static)
endif()
