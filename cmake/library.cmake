# SPDX-License-Identifier: Apache-2.0
# libferry: core, comm and the CPU backend; the kernels of src/cpu/kernels.c are built once per instruction set.
file(GLOB FERRY_SOURCES CONFIGURE_DEPENDS src/core/*.c src/comm/*.c src/cpu/*.c)
list(FILTER FERRY_SOURCES EXCLUDE REGEX "src/cpu/kernels\\.c$")

set(FERRY_KERNEL_OBJECTS "")
set(FERRY_ISAS portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND FERRY_ISAS avx2 avx512)
endif()
set(FERRY_ISA_FLAGS_portable "")
set(FERRY_ISA_FLAGS_avx2 -mavx2 -mfma)
set(FERRY_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512)
foreach(isa ${FERRY_ISAS})
  add_library(ferry_kernels_${isa} OBJECT src/cpu/kernels.c)
  target_compile_definitions(ferry_kernels_${isa} PRIVATE FY_ISA_${isa}=1)
  target_compile_options(ferry_kernels_${isa} PRIVATE ${FERRY_ISA_FLAGS_${isa}})
  target_link_libraries(ferry_kernels_${isa} PRIVATE ferry_flags)
  list(APPEND FERRY_KERNEL_OBJECTS $<TARGET_OBJECTS:ferry_kernels_${isa}>)
endforeach()

add_library(ferry_objects OBJECT ${FERRY_SOURCES})
target_link_libraries(ferry_objects PRIVATE ferry_flags)

add_library(ferry_static STATIC $<TARGET_OBJECTS:ferry_objects> ${FERRY_KERNEL_OBJECTS})
add_library(ferry_shared SHARED $<TARGET_OBJECTS:ferry_objects> ${FERRY_KERNEL_OBJECTS})
set_target_properties(ferry_static ferry_shared PROPERTIES OUTPUT_NAME ferry)
set_target_properties(ferry_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/ferry.map)
target_link_options(ferry_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/ferry.map)
target_link_libraries(ferry_static PUBLIC ferry_flags)
target_link_libraries(ferry_shared PRIVATE ferry_flags)

# The FP64 oracle is for checks only: no part of the library.
file(GLOB FERRY_REF_SOURCES CONFIGURE_DEPENDS src/ref/*.c)
if(FERRY_REF_SOURCES)
  add_library(ferry_ref STATIC ${FERRY_REF_SOURCES})
  target_link_libraries(ferry_ref PUBLIC ferry_flags)
endif()
